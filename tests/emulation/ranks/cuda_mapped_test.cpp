// Tensors in memory that the trainer maps itself, most in several mappings: operations and
// training.

#include "emulation/ranks/kernels.hpp"

#include <algorithm>
#include <guozhuang/guozhuang.hpp>
#include <memory>
#include <string>
#include <vector>

#include "emulation/expandable_segment.hpp"
#include "emulation/ranks/trainer.hpp"
#include "support/cases/operation_cases.hpp"
#include "support/cases/operation_sweeps.hpp"
#include "support/runner/catch.hpp"
#include "support/runner/mpi_report.hpp"

using namespace guozhuang;
using namespace guozhuang::test;

namespace {

class SegmentTrainer final : public Trainer {
public:
    const ExpandableSegment& segment() const noexcept { return *segment_; }

private:
    std::shared_ptr<void> allocate(std::size_t bytes) override {
        return {segment_, segment_->take(bytes)};
    }

    const std::shared_ptr<ExpandableSegment> segment_ =
        std::make_shared<ExpandableSegment>(device());
};

/// Each larger than a mapping of the segment.
void large_tensors(Session& session, Report& report) {
    constexpr std::int64_t count = 1'200'007;
    const Among among(session);
    std::vector<Finish> started{
        start_allreduce(among, "sum", {DType::f32, {count}, {ReduceOp::average, 0.5, 3}}),
        start_allreduce(among, "smallest", {DType::i16, {2 * count}, {ReduceOp::min}}),
        start_broadcast(among, "broadcast", DType::f64, {count}, session.size() - 1)};
    const std::vector<std::int64_t> rows(static_cast<std::size_t>(session.size()), count);
    started.push_back(start_all_gather(among, "gathered", DType::f32, rows, {1}));
    started.push_back(
        start_reduce_scatter(among, "scattered", {DType::f32, {count, 1}, {ReduceOp::sum}}));
    for (const auto& finish : started) finish(report);
}

/// Gradients and values of which most lie in two mappings or more; the step is enqueued.
class Model {
public:
    explicit Model(SegmentTrainer& trainer) : trainer_(trainer) {
        for (const std::size_t count : {5U, 700'003U, 1'200'007U}) {
            gradients_.push_back(trainer.put_elements(std::vector<float>(count, -1)));
            values_.push_back(trainer.put_elements(std::vector<float>(count, 1)));
            counts_.push_back(count);
        }
    }
    std::vector<Parameter> parameters() const {
        std::vector<Parameter> all;
        for (std::size_t i = 0; i < counts_.size(); ++i)
            all.push_back({text_of("p", i), trainer_.view(values_[i], counts_[i]),
                           trainer_.view(gradients_[i], counts_[i])});
        return all;
    }
    void backward(float gradient, const GradientHook& hook) const {
        for (std::size_t i = counts_.size(); i-- > 0;) {
            launch_set(gradients_[i].get(), static_cast<unsigned>(counts_[i]), gradient,
                       trainer_.native());
            hook(i);
        }
    }
    void step() const {
        for (std::size_t i = 0; i < counts_.size(); ++i)
            launch_scale(gradients_[i].get(), values_[i].get(), static_cast<unsigned>(counts_[i]),
                         -1, trainer_.native());
    }
    bool has_values(float value) const {
        for (std::size_t i = 0; i < counts_.size(); ++i)
            if (trainer_.elements(values_[i], counts_[i]) != std::vector<float>(counts_[i], value))
                return false;
        return true;
    }

private:
    SegmentTrainer& trainer_;
    std::vector<std::shared_ptr<float>> gradients_, values_;
    std::vector<std::size_t> counts_;
};

void train(Session& session, Report& report, SegmentTrainer& trainer) {
    Model model(trainer);
    broadcast_parameters(model.parameters());
    DistributedOptimizer optimizer(model, model.parameters(), {.stream = trainer.stream()});
    const auto ranks = static_cast<float>(session.size());
    for (int step = 1; step <= 3; ++step) {
        const auto scale = static_cast<float>(step);
        model.backward(scale * static_cast<float>(session.rank() + 1), optimizer.on_gradient());
        optimizer.step();
        report.expect(model.has_values(-scale * (ranks + 1) / 2), text_of("values of step ", step));
    }
    check_consistent(model.parameters(), &session, trainer.stream());
}

std::string problems_of(const RankCase& body, std::size_t least_mappings) {
    const SegmentTrainer trainer;
    auto problems = problems_here(body);
    if (trainer.segment().mappings() < least_mappings) problems += "too few mappings were tried";
    return problems;
}

}  // namespace

TEST_CASE("operations on tensors in several mappings of a segment") {
    CHECK(problems_of(large_tensors, 12) == "");
    CHECK(problems_of(grouped_operations, 1) == "");
    CHECK(problems_of(message_sweep, 1) == "");
}

TEST_CASE("gradients in several mappings of a segment are trained") {
    SegmentTrainer trainer;
    CHECK(problems_here(
              [&](Session& session, Report& report) { train(session, report, trainer); }) == "");
    CHECK(trainer.segment().mappings() > 6);
}
