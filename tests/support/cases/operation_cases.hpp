#pragma once

#include <chrono>
#include <functional>
#include <guozhuang/operations.hpp>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "support/oracles/reduction_oracle.hpp"
#include "support/runner/report.hpp"
#include "support/tensors/device_memory.hpp"
#include "support/tensors/guarded_tensor.hpp"
#include "support/tensors/tensors.hpp"

/// One operation each, from its start on this rank to the check of its result here. The name alone
/// determines the contributions of all ranks, so each rank knows what the others contribute.
namespace guozhuang::test {

/// The ranks of an operation: all ranks of a session, or those of a process set. Ranks are group
/// ranks.
class Among {
public:
    // NOLINTNEXTLINE(google-explicit-constructor): most cases are about all ranks
    Among(Session& session) : set_(&session) {}
    // NOLINTNEXTLINE(google-explicit-constructor)
    Among(ProcessSet set) : set_(std::move(set)), part_(true) {}

    int rank() const { return set_.rank(); }
    int size() const { return set_.size(); }
    int rank_of_job(int rank) const { return set_.ranks()[static_cast<std::size_t>(rank)]; }
    bool is_part() const { return part_; }  ///< other ranks of the job do not take part
    const ProcessSet& set() const { return set_; }

    /// The same, with something that operations among them do otherwise.
    Among within(std::chrono::milliseconds timeout) const {
        auto other = *this;
        other.timeout_ = timeout;
        return other;
    }
    Among on(Device device) const {
        auto other = *this;
        other.device_ = device;
        return other;
    }
    std::chrono::milliseconds timeout() const { return timeout_; }
    Device device() const { return device_; }

private:
    ProcessSet set_;
    bool part_ = false;
    std::chrono::milliseconds timeout_{};
    Device device_ = usual_device();
};

/// Waits for the operation and checks it.
using Finish = std::function<void(Report&)>;
using SharedTensor = std::shared_ptr<Tensor>;

/// A rank's contribution under a name.
Tensor contribution(const std::string& name, int rank, DType dtype, Shape shape);

std::vector<Tensor> contributions(const std::string& name, int ranks, DType dtype,
                                  const Shape& shape);

std::string label_of(const std::string& operation, DType dtype, ReduceOp op, const Shape& shape);

struct Reduce {
    DType dtype = DType::f32;
    Shape shape = {0};
    Reduction how = {};
};

AllreduceOptions options_of(const Among& among, const std::string& name, const Reduction& how);

Options options_of(const Among& among, const std::string& name);

/// This rank's contribution.
SharedTensor input_of(const Among& among, const std::string& name, DType dtype, const Shape& shape);

/// Memory for this rank's result, on every other rank, chosen by the name, since each rank decides
/// alone whether it gives an output; null on the others.
std::shared_ptr<GuardedTensor> output_of(const Among& among, const std::string& name, DType dtype,
                                         const Shape& shape);

/// The elements of a result, wherever they are.
std::vector<std::byte> elements_of(const Result& result);

/// The result is in the output, if there is one, and nowhere else.
void check_place(Report& report, const std::string& name, const Result& result,
                 GuardedTensor* output);

/// In a whole job rank 0 checks the numbers, and the other ranks must have the same bits; in a part
/// of it every rank checks the numbers.
void check_allreduced(const Among& among, Report& report, const std::string& name,
                      const Tensor& result, const Reduction& how);

Finish start_allreduce(const Among& among, const std::string& name, const Reduce& reduce);

/// Several tensors, of any dtypes and shapes, in one operation.
Finish start_grouped_allreduce(const Among& among, const std::string& name,
                               const std::vector<Reduce>& reduces);

Finish start_broadcast(const Among& among, const std::string& name, DType dtype, const Shape& shape,
                       int root);

/// The result must be these parts, one after the other.
void check_parts(Report& report, const std::string& name, const Result& result,
                 const std::vector<Tensor>& parts);

Shape with_rows(std::int64_t rows, const Shape& row);

/// `rows` of each rank, each row of this shape.
Finish start_all_gather(const Among& among, const std::string& name, DType dtype,
                        const std::vector<std::int64_t>& rows, const Shape& row);

/// `splits[from][to]` rows.
using Splits = std::vector<std::vector<std::int64_t>>;

Tensor rows_of(const Tensor& tensor, std::int64_t first, std::int64_t count);

Finish start_all_to_all(const Among& among, const std::string& name, DType dtype,
                        const Splits& splits, const Shape& row);

/// A rank's part of a reduce-scatter: its first row, and the number of rows.
std::pair<std::int64_t, std::int64_t> share_of(std::int64_t rows, int rank, int ranks);

void check_reduce_scattered(const Among& among, Report& report, const std::string& name,
                            const Result& result, const Reduce& reduce);

Finish start_reduce_scatter(const Among& among, const std::string& name, const Reduce& reduce);

/// A message between two ranks, which may be the same; the others take no part.
struct Message {
    int from = 0, to = 0;
    std::uint16_t tag = 0;
    DType dtype = DType::u8;
    Shape shape = {0};
};

Finish start_message(const Among& among, const std::string& name, const Message& message);

Finish start_barrier(const Among& among, const std::string& name);

}  // namespace guozhuang::test
