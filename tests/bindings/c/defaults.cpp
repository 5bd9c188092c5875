// The macros that make the options of C give the defaults of those of C++.
#include <guozhuang.h>

#include <cstdio>
#include <guozhuang/guozhuang.hpp>

namespace {

int failures = 0;

template <class T, class U>
void same(T c, U cpp, const char* what) {
    if (c == static_cast<T>(cpp)) return;
    std::printf("the defaults of %s differ\n", what);
    ++failures;
}

void compare_operations() {
    const GzOptions c = GZ_OPTIONS_INIT;
    const guozhuang::AllreduceOptions cpp;
    same(c.prescale, cpp.prescale, "prescale");
    same(c.postscale, cpp.postscale, "postscale");
    same(c.timeout_ms, cpp.timeout.count(), "timeout");
    const GzPlanOptions c_plan = GZ_PLAN_OPTIONS_INIT;
    const guozhuang::PlanOptions plan;
    same(c_plan.op, plan.op, "a plan's op");
    same(c_plan.prescale, plan.prescale, "a plan's prescale");
    same(c_plan.postscale, plan.postscale, "a plan's postscale");
}

void compare_training() {
    const GzReducerOptions c = GZ_REDUCER_OPTIONS_INIT;
    const guozhuang::OptimizerOptions cpp;
    same(c.op, cpp.op, "op");
    same(c.backward_passes_per_step, cpp.backward_passes_per_step, "backward_passes_per_step");
    same(c.gradient_scale, cpp.gradient_scale, "gradient_scale");
    same(c.bundle_bytes, cpp.bundle_bytes, "bundle_bytes");
    same(c.first_bundle_bytes, cpp.first_bundle_bytes, "first_bundle_bytes");
    same(c.check_values, cpp.check_values, "check_values");
    same(c.memory, cpp.memory, "memory");
    const GzSamplerOptions c_sampler = GZ_SAMPLER_OPTIONS_INIT;
    const guozhuang::SamplerOptions sampler;
    same(c_sampler.seed, sampler.seed, "seed");
    same(c_sampler.shuffle, sampler.shuffle, "shuffle");
    same(c_sampler.tail, sampler.tail, "tail");
    const GzRankOptions c_ranks = GZ_RANK_OPTIONS_INIT;
    const guozhuang::RankOptions ranks;
    same(c_ranks.take_turns, ranks.turns.has_value(), "turns");
    same(c_ranks.hosts, ranks.hosts, "hosts");
}

}  // namespace

int main() {
    compare_operations();
    compare_training();
    return failures == 0 ? 0 : 1;
}
