#pragma once

#include <guozhuang/process_set.hpp>
#include <guozhuang/session.hpp>

namespace guozhuang {

/// How many ranks share each kind of work; their product is the number of ranks.
struct GridShape {
    int data = 1;      ///< copies of the model, which take different samples
    int tensor = 1;    ///< ranks that hold parts of the same layers
    int pipeline = 1;  ///< stages, each with some of the layers
};

/// Counts from 0 in each direction.
struct GridPosition {
    int data = 0, tensor = 0, pipeline = 0;
};

/// The ranks of a job as a grid, for training that is parallel in several ways (M. Shoeybi et al.,
/// "Megatron-LM", 2019; D. Narayanan et al., "Efficient Large-Scale Language Model Training on GPU
/// Clusters Using Megatron-LM", 2021). Ranks of a tensor set are neighbours, so they are on one
/// host if it has enough of them; stages are farthest apart, since they exchange the least.
/// Immutable; any thread.
class GUOZHUANG_API Grid {
public:
    /// Collective over the job: every rank calls it with the same shape. Creates the process sets
    /// of all ranks, which live as long as the session: one for each data and each tensor set.
    /// Throws Error(invalid_argument) unless the shape has as many positions as there are ranks;
    /// Error(mismatch) on all ranks if their shapes differ; what ProcessSet::create() throws.
    explicit Grid(const GridShape& shape, Session* session = nullptr);

    const GridShape& shape() const noexcept { return shape_; }
    const GridPosition& position() const noexcept { return position_; }  ///< of this rank
    /// The rank of the job at a position. Throws Error(invalid_argument) for one outside the grid.
    int rank_at(const GridPosition& position) const;

    /// The ranks with the same part of the model as this one: gradients are averaged over them.
    const ProcessSet& data() const noexcept { return data_; }
    /// The ranks with the other parts of the same layers: partial sums are added up over them.
    const ProcessSet& tensor() const noexcept { return tensor_; }
    /// The ranks of the job to which send() and recv() pass activations on and gradients back; -1
    /// at the ends of the pipeline.
    int previous_stage() const;
    int next_stage() const;

private:
    GridShape shape_;
    GridPosition position_;
    ProcessSet data_, tensor_;
};

}  // namespace guozhuang
