#pragma once

#include <guozhuang/arena.hpp>
#include <guozhuang/process_set.hpp>
#include <guozhuang/session.hpp>
#include <guozhuang/tensor.hpp>
#include <memory>
#include <string>
#include <vector>

namespace guozhuang {

/// When and how values are averaged. The same on all ranks of the process set, except the session.
struct LocalSgdOptions {
    std::string name = {};  ///< as in PlanOptions
    int steps = 8;          ///< each rank makes this many steps by itself between two averages
    /// The outer step: with x the values after the last average and m the mean of the ranks' values
    /// now, d = x - m is taken as a gradient: u = outer_momentum u + d; the new values are
    /// x - outer_rate u, or with `nesterov` x - outer_rate (d + outer_momentum u). By default they
    /// are m.
    double outer_rate = 1;        ///< above 0
    double outer_momentum = 0;    ///< 0 to below 1
    bool nesterov = false;        ///< only with an outer momentum
    Session* session = nullptr;   ///< as in Options
    ProcessSet process_set = {};  ///< whose ranks train together; as in Options
};

/// Local SGD: each rank steps by itself, with any optimizer of its own, and every few steps the
/// parameters' values are averaged over the ranks (S. Stich, "Local SGD Converges Fast and
/// Communicates Little", 2018). With an outer momentum it is SlowMo (J. Wang et al., 2019), with
/// Nesterov's and Adam inside DiLoCo (A. Douillard et al., 2023). docs/training/local_sgd.md says
/// when it pays.
///
/// Call broadcast_parameters() before the constructor. The parameters' memory must outlive this.
/// One thread at a time.
class GUOZHUANG_API LocalSgd {
public:
    /// Local. Averages the values of all these parameters, with a gradient or not. With an outer
    /// step it keeps a copy of them, or two with a momentum. Throws Error(invalid_argument) for
    /// options out of range, no parameters, empty or duplicate names, and values that overlap or
    /// are not contiguous f32 or f64 in host memory; Error(duplicate_name) and
    /// Error(not_initialised) as Plan does.
    explicit LocalSgd(std::vector<Parameter> parameters, const LocalSgdOptions& options = {});
    /// Never waits for other ranks, whose averages still get what this rank has begun.
    ~LocalSgd();
    LocalSgd(LocalSgd&&) noexcept;

    /// Call it after each step of the local optimizer. Every call number `steps` averages the
    /// values, blocks until all ranks have come to that, and returns true. Then all ranks hold the
    /// same bits. Throws what Plan::wait() throws, such as Error(departed) if a rank has ended;
    /// values are then averaged or not, the outer step is not made, and the next call averages
    /// again. Throws Error(mismatch) on all ranks, before anything is changed, if their options
    /// differ; with an outer step also if x differs at the first average or the first after a
    /// join(). An average divides by the number of ranks that have not joined.
    bool step();
    /// Averages now, e.g. at the end of training. Every rank calls it, whatever number of steps it
    /// has made since the last average; the next one comes `steps` steps later.
    void synchronize();

    /// The steps since the last average ("steps"), x ("last/NAME") and u ("momentum/NAME"). All
    /// ranks need the same if training resumes between two averages, and after a join(). Refers to
    /// memory of this.
    std::vector<NamedTensor> state() const;
    /// For broadcast_optimizer_state() and checkpoints.
    template <class V>
    void visit_state(V&& visit) {
        for (const auto& [name, tensor] : state()) visit(name, tensor);
    }

private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace guozhuang
