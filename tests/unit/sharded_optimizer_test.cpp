// An optimizer whose state is divided among the ranks, against one that is not.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <guozhuang/guozhuang.hpp>
#include <numeric>
#include <random>
#include <vector>

#include "support/cases/error_cases.hpp"
#include "support/runner/catch.hpp"
#include "support/runner/environment.hpp"
#include "support/runner/report.hpp"

using namespace guozhuang;
using namespace guozhuang::test;

namespace {

/// Sizes that do not divide, one with fewer elements than ranks, one with none, and one that is
/// too large for a bundle of 400 bytes.
const std::vector<std::size_t> some_sizes{7, 1, 0, 150, 2, 33, 3};

/// A model whose gradients are given: of rank, step and pass.
template <class T>
struct Weights {
    explicit Weights(const std::vector<std::size_t>& sizes = some_sizes) {
        for (const auto size : sizes) {
            values.emplace_back(size);
            std::iota(values.back().begin(), values.back().end(), static_cast<T>(values.size()));
            gradients.emplace_back(size);
        }
    }
    std::vector<Parameter> parameters() {
        std::vector<Parameter> all;
        for (std::size_t i = 0; i < values.size(); ++i)
            all.push_back({"weight " + std::to_string(i), values[i], gradients[i]});
        return all;
    }
    void clear() {
        for (auto& gradient : gradients) std::ranges::fill(gradient, T{0});
    }
    void backward(int rank, int step, int pass = 0) {
        std::mt19937 random(static_cast<unsigned>((rank * 100 + step) * 100 + pass));
        std::normal_distribution<T> normal;
        for (auto& gradient : gradients)
            for (auto& element : gradient) element += normal(random);
    }
    /// Adds whole numbers, with the same mean on any number of ranks.
    void backward_whole(int step) {
        for (std::size_t i = 0; i < gradients.size(); ++i)
            for (std::size_t j = 0; j < gradients[i].size(); ++j)
                gradients[i][j] +=
                    static_cast<T>((i + 3 * j + static_cast<std::size_t>(step)) % 5) - 2;
    }

    std::vector<std::vector<T>> values, gradients;
};

/// The same rule on all elements, for a DistributedOptimizer.
template <class Rule, class T>
class Whole {
public:
    Whole(Rule& rule, Weights<T>& model) : rule_(&rule), model_(&model) {
        for (const auto& value : model.values) state_.emplace_back(rule.moments() * value.size());
    }
    void step() {
        ++step_;
        for (std::size_t i = 0; i < state_.size(); ++i) {
            const auto count = model_->values[i].size();
            std::vector<std::span<T>> state;
            for (std::size_t k = 0; k < rule_->moments(); ++k)
                state.push_back(std::span(state_[i]).subspan(k * count, count));
            (*rule_)(Shard<T>{.parameter = i,
                              .values = model_->values[i],
                              .gradients = model_->gradients[i],
                              .state = state,
                              .step = step_});
        }
    }
    std::size_t bytes() const {
        std::size_t all = 0;
        for (const auto& state : state_) all += state.size() * sizeof(T);
        return all;
    }

private:
    Rule* rule_;
    Weights<T>* model_;
    std::vector<std::vector<T>> state_;
    std::uint64_t step_ = 0;
};

/// Whether both hold the same bits, or about the same numbers.
template <class T>
bool are_equal(const Weights<T>& one, const Weights<T>& other, bool bits) {
    for (std::size_t i = 0; i < one.values.size(); ++i)
        for (std::size_t j = 0; j < one.values[i].size(); ++j) {
            const auto a = one.values[i][j], b = other.values[i][j];
            if (bits ? std::memcmp(&a, &b, sizeof a) != 0 : !(std::abs(a - b) <= 1e-5))
                return false;
        }
    return true;
}

/// Trains both ways, and compares after each step.
template <class T, class Rule>
void compare(Session& session, Report& report, Rule rule, const ShardedOptimizerOptions& options,
             bool bits, bool with_hooks) {
    Weights<T> alone, sharded;
    Whole whole(rule, alone);
    const int passes = options.backward_passes_per_step;
    DistributedOptimizer reference(
        whole, alone.parameters(),
        {.backward_passes_per_step = passes, .gradient_scale = options.gradient_scale});
    ShardedOptimizer optimizer(rule, sharded.parameters(), options);
    for (int step = 0; step < 4; ++step) {
        for (int pass = 0; pass < passes; ++pass) {
            alone.backward(session.rank(), step, pass);
            sharded.backward(session.rank(), step, pass);
            if (with_hooks) {
                const auto hook = optimizer.on_gradient();
                for (std::size_t i = some_sizes.size(); i-- > 0;) hook(i);
            }
            const bool is_last = pass == passes - 1;
            report.expect(reference.step() == is_last && optimizer.step() == is_last, "a step");
            if (options.shard_gradients) sharded.clear();
        }
        alone.clear();
        sharded.clear();
        report.expect(are_equal(alone, sharded, bits), text_of("values after step ", step));
    }
    auto bytes = static_cast<std::int64_t>(optimizer.state_bytes());
    const auto own = bytes;
    allreduce(bytes);
    report.expect_equal(static_cast<std::size_t>(bytes), whole.bytes(), "the bytes of all states");
    const auto rank = static_cast<std::size_t>(session.rank()),
               size = static_cast<std::size_t>(session.size());
    const auto share = 196 / size + (rank < 196 % size ? 1 : 0);
    report.expect_equal(static_cast<std::size_t>(own), share * sizeof(T) * rule.moments(),
                        "the bytes of this rank's share");
}

template <class T>
void compare_rules(Session& session, Report& report, const ShardedOptimizerOptions& options,
                   bool bits) {
    for (const bool with_hooks : {false, true}) {
        compare<T>(session, report, ShardedSgd{.weight_decay = 0.1}, options, bits, with_hooks);
        compare<T>(session, report,
                   ShardedSgd{.momentum = 0.9, .weight_decay = 0.1, .nesterov = with_hooks},
                   options, bits, with_hooks);
        compare<T>(session, report, ShardedAdam{.weight_decay = 0.1}, options, bits, with_hooks);
    }
}

/// A rule of a user.
struct Throwing {
    int rank = 0;
    bool throws = false;
    void operator()(const Shard<float>& shard) const {
        if (throws && rank == 1 && shard.parameter == 0)
            throw std::runtime_error("no more of this");
        for (std::size_t i = 0; i < shard.values.size(); ++i) shard.values[i] -= shard.gradients[i];
    }
};

std::string refusal(std::vector<Parameter> parameters,
                    const ShardedOptimizerOptions& options = {}) {
    std::string text;
    run_ranks(1, [&](Session&) {
        Throwing rule;
        const auto error =
            error_of([&] { ShardedOptimizer(rule, std::move(parameters), options); });
        if (error)
            text = error->code() == ErrorCode::invalid_argument ? error->what() : "another error";
    });
    return text;
}

}  // namespace

TEST_CASE("sharded training has the bits of training that is not, where the sums are of one tree") {
    const auto body = [](Session& session, Report& report) {
        compare_rules<float>(session, report, {.bundle_bytes = 400}, true);
        compare_rules<double>(session, report, {.gradient_scale = 0.3}, true);
    };
    for (const int ranks : {1, 2, 3, 4}) CHECK(problems_among(ranks, body) == "");
    const Environment reproducible("GUOZHUANG_REPRODUCIBLE", "1");
    for (const int ranks : {1, 2, 3, 4}) CHECK(problems_among(ranks, body) == "");
    for (const int hosts : {2, 4}) CHECK(problems_among(4, body, {.hosts = hosts}) == "");
}

TEST_CASE("gradients of several passes add up, in the trainer's memory or in this rank's share") {
    for (const int ranks : {1, 3})
        CHECK(problems_among(ranks, [](Session& session, Report& report) {
                  compare_rules<float>(session, report,
                                       {.backward_passes_per_step = 3, .bundle_bytes = 400}, true);
                  compare_rules<double>(session, report,
                                        {.backward_passes_per_step = 3, .shard_gradients = true},
                                        false);
              }) == "");
}

TEST_CASE("between hosts other sums are about the same") {
    CHECK(problems_among(4,
                         [](Session& session, Report& report) {
                             compare_rules<float>(session, report, {}, false);
                         },
                         {.hosts = 2}) == "");
}

TEST_CASE("a discarded batch changes nothing on any rank, in whatever pass") {
    const LogCapture log;
    for (const bool shards : {false, true})
        CHECK(problems_among(3, [&](Session& session, Report& report) {
                  Weights<float> model, before;
                  ShardedAdam rule;
                  ShardedOptimizer optimizer(rule, model.parameters(),
                                             {.backward_passes_per_step = 2,
                                              .bundle_bytes = 400,
                                              .shard_gradients = shards});
                  const auto pass = [&] {
                      model.backward(session.rank(), 0);
                      optimizer.on_gradient()("weight 3");
                  };
                  const auto fail = [&](int last) {
                      const auto state = optimizer.save();
                      if (last == 1) pass(), optimizer.step();
                      pass();
                      if (session.rank() == 1) return optimizer.discard("a bad batch");
                      if (last == 0) optimizer.step(), pass();
                      expect_error(report, ErrorCode::discarded, {"a bad batch", "rank 1"},
                                   [&] { optimizer.step(); });
                      report.expect(optimizer.save() == state, "the state");
                  };
                  for (const int last : {0, 1}) {
                      fail(last);
                      report.expect(are_equal(model, before, true), "no values have changed");
                      model.clear();
                  }
                  pass();
                  optimizer.step();
                  pass();
                  report.expect(optimizer.step(), "the next batch");
              }) == "");
}

TEST_CASE("what a mark has thrown ends the batch on all ranks") {
    const LogCapture log;
    CHECK(
        problems_among(2, [](Session& session, Report& report) {
            Weights<float> model, before;
            Throwing rule;
            ShardedOptimizer optimizer(rule, model.parameters(), {.name = "sharded"});
            optimizer.mark("weight 5");
            if (session.rank() == 0) {
                const auto again = [&] { optimizer.mark("weight 5"); };
                const std::string text =
                    "ShardedOptimizer 'sharded': the gradient of 'weight 5' was marked ready twice";
                expect_error(report, ErrorCode::invalid_argument, {text}, again);
                expect_error(report, ErrorCode::invalid_argument, {text},
                             [&] { optimizer.step(); });
            } else {
                expect_error(report, ErrorCode::discarded, {"marked ready twice"},
                             [&] { optimizer.step(); });
            }
            report.expect(are_equal(model, before, true), "no values have changed");
            expect_error(report, ErrorCode::invalid_argument, {"was it called twice?"},
                         [&] { optimizer.step(); });
            model.backward_whole(1);
            const auto slopes = model.gradients[5];
            optimizer.mark(0);
            report.expect(optimizer.step(), "the next batch");
            report.expect(model.values[5] == before.values[5] && model.gradients[5] != slopes,
                          "what was not marked is zero");
            report.expect(model.values[0] != before.values[0], "what was marked counts");
        }) == "");
}

TEST_CASE("a rule that throws is an error on all ranks, which hold the same values") {
    CHECK(problems_among(3, [](Session& session, Report& report) {
              Weights<float> model;
              Throwing rule{.rank = session.rank(), .throws = true};
              ShardedOptimizer optimizer(rule, model.parameters(), {.bundle_bytes = 400});
              model.backward(session.rank(), 0);
              if (session.rank() == 1) {
                  std::string text;
                  try {
                      optimizer.step();
                  } catch (const std::runtime_error& error) {
                      text = error.what();
                  }
                  report.expect_equal(text, std::string("no more of this"), "the exception");
              } else {
                  expect_error(report, ErrorCode::discarded,
                               {"rank 1", "its update rule has failed", "no more of this"},
                               [&] { optimizer.step(); });
              }
              check_consistent(model.parameters());
              rule.throws = false;
              report.expect(optimizer.step(), "the next batch");
          }) == "");
}

TEST_CASE("a rank that has joined is named, one that leaves ends the wait") {
    CHECK(problems_among(3, [](Session& session, Report& report) {
              Weights<float> model, before;
              Throwing rule;
              ShardedOptimizer optimizer(rule, model.parameters(),
                                         {.backward_passes_per_step = 2, .shard_gradients = true});
              model.backward_whole(1);
              optimizer.step();
              if (session.rank() != 2)
                  expect_error(report, ErrorCode::departed, {"rank 2 cannot take part"},
                               [&] { optimizer.step(); });
              join();
              report.expect(are_equal(model, before, true), "no values have changed");
              report.expect(!optimizer.step() && optimizer.step(), "all are there again");
          }) == "");
    const auto leaving = [](Session& session) {
        Weights<float> model;
        Throwing rule;
        ShardedOptimizer optimizer(rule, model.parameters(), {.bundle_bytes = 400});
        if (session.rank() == 1) {
            optimizer.mark(3);  // it is read until the others come
            throw std::runtime_error("no disk");
        }
        if (!error_of([&] { optimizer.step(); })) throw std::logic_error("no error");
    };
    CHECK_THROWS_WITH(run_ranks(3, leaving), "no disk");
}

TEST_CASE("parameters and options that differ are found when the optimizer is made") {
    CHECK(problems_among(2, [](Session& session, Report& report) {
              const bool is_odd = session.rank() == 1;
              std::vector<float> values(6), gradients(6);
              Throwing rule;
              const auto make = [&](const TensorView& value, const TensorView& gradient,
                                    const char* name, const ShardedOptimizerOptions& options = {}) {
                  return [=, &rule] { ShardedOptimizer(rule, {{name, value, gradient}}, options); };
              };
              const TensorView wide(values, {2, 3}), high(values, {3, 2}),
                  slopes(gradients, {2, 3}), high_slopes(gradients, {3, 2});
              const auto shape = is_odd ? make(high, high_slopes, "w") : make(wide, slopes, "w");
              expect_error(report, ErrorCode::mismatch,
                           {"'w': dtypes and shapes differ: f32 [2, 3] on rank 0; f32 [3, 2] on "
                            "rank 1"},
                           shape);
              expect_error(report, ErrorCode::mismatch,
                           {"'w': dtypes and shapes differ: f32 [2, 3] on rank 0; none on rank 1"},
                           make(wide, slopes, is_odd ? "v" : "w"));
              expect_error(report, ErrorCode::mismatch,
                           {"values of gradient_scale differ: 1 on rank 0; 2 on rank 1"},
                           make(wide, slopes, "w", {.gradient_scale = is_odd ? 2.0 : 1.0}));
              make(wide, slopes, "w")();
          }) == "");
}

TEST_CASE("tensors that cannot be sharded are refused by name") {
    std::vector<float> value(2), gradient(2), other(2), longer(3);
    std::vector<double> doubles(2), double_gradient(2);
    std::vector<std::int32_t> integers(2);
    const Parameter good{"w", value, gradient};
    CHECK(refusal({good, {"frozen", other, {}}}) == "");
    CHECK(refusal({good}, {.name = "s", .backward_passes_per_step = 0}) ==
          "ShardedOptimizer 's': backward_passes_per_step is 0; it must be 1 at least");
    CHECK(refusal({good, good}) == "ShardedOptimizer: two parameters are called 'w'");
    CHECK(refusal({{"w", value, longer}}) ==
          "ShardedOptimizer: 'w': its value and gradient differ in shape");
    CHECK(refusal({{"w", value, doubles}}) ==
          "ShardedOptimizer: 'w': its value and gradient differ in dtype");
    CHECK(refusal({{"w", integers, integers}}) ==
          "ShardedOptimizer: 'w': it is of i32; f32 and f64 can be sharded");
    CHECK(refusal({{"w", doubles, double_gradient}}) ==
          "ShardedOptimizer: 'w': it is of f64, which the rule does not take");
    CHECK(refusal({good, {"v", other, gradient}}) ==
          "ShardedOptimizer: 'v' and 'w' have memory in common; tied weights cannot be sharded");
    CHECK(refusal({{"w", value, value}}) ==
          "ShardedOptimizer: value and gradient of 'w' have the same memory");
    auto there = good;
    there.value.device = {DeviceKind::cuda, 0};
    CHECK(refusal({there}) ==
          "ShardedOptimizer: 'w': it is on cuda 0; only host memory can be sharded");
    auto strided = good;
    strided.gradient.strides = {2};
    CHECK(refusal({strided}) == "ShardedOptimizer: 'w': it is not contiguous");
}

TEST_CASE("training goes on with fewer ranks as if it had not been interrupted") {
    constexpr int steps_of_each = 3;
    Weights<float> expected;
    run_ranks(1, [&](Session&) {
        ShardedAdam rule{.learning_rate = 0.1};
        ShardedOptimizer optimizer(rule, expected.parameters());
        for (int step = 0; step < 3 * steps_of_each; ++step) {
            expected.backward_whole(step);
            optimizer.step();
            expected.clear();
        }
    });
    Weights<float> checkpoint;
    std::vector<std::string> shares;
    for (int done = 0; const int ranks : {4, 3, 2}) {
        std::vector<std::string> next;
        CHECK(problems_among(ranks, [&](Session& session, Report& report) {
                  auto model = checkpoint;
                  ShardedAdam rule{.learning_rate = 0.1};
                  ShardedOptimizer optimizer(
                      rule, model.parameters(),
                      {.bundle_bytes = ranks == 3 ? std::size_t{400} : std::size_t{1000}});
                  if (done > 0) optimizer.load(shares);
                  for (int step = done; step < done + steps_of_each; ++step) {
                      model.backward_whole(step);
                      optimizer.step();
                      model.clear();
                  }
                  const auto all = all_gather_bytes(optimizer.save());
                  report.expect_equal(all.size(), static_cast<std::size_t>(ranks), "shares");
                  barrier();
                  if (session.rank() == 0) {
                      checkpoint = model;
                      next = all;
                  }
              }) == "");
        shares = next;
        done += steps_of_each;
    }
    CHECK(are_equal(checkpoint, expected, true));
}

TEST_CASE("shares that are missing or do not fit change nothing") {
    std::vector<std::string> shares, later;
    run_ranks(2, [&](Session& session) {
        Weights<float> model;
        ShardedAdam rule;
        ShardedOptimizer optimizer(rule, model.parameters());
        const auto take = [&] {
            model.backward(session.rank(), 0);
            optimizer.step();
            return all_gather_bytes(optimizer.save());
        };
        const auto first = take(), second = take();
        if (session.rank() == 0) shares = first, later = second;
    });
    CHECK(problems_among(1, [&](Session&, Report& report) {
              Weights<float> model;
              ShardedAdam rule;
              ShardedOptimizer optimizer(rule, model.parameters(), {.name = "adam"});
              const auto before = optimizer.save();
              const auto refused = [&](const std::vector<std::string>& given,
                                       const std::string& text) {
                  expect_error(report, ErrorCode::invalid_argument, {text},
                               [&] { optimizer.load(given); });
                  report.expect(optimizer.save() == before, "it is as it was");
              };
              refused({}, "there are no shares");
              refused({shares[0]}, "the shares do not have all elements of 'weight 3'");
              refused({shares[0], shares[0]}, "the shares do not have all elements of");
              refused({shares[0], later[1]}, "the shares are of different steps: 1 and 2");
              for (std::size_t length = 0; length < shares[0].size(); ++length)
                  refused({shares[0].substr(0, length), shares[1]}, "a share is damaged");
              refused({shares[0] + "x", shares[1]}, "a share is damaged");
              auto other = shares[0];
              other[0] ^= 1;
              refused({other, shares[1]}, "a share is damaged");
              optimizer.load(std::vector{shares[1], shares[0]});
              report.expect(optimizer.save() != before, "loaded");

              Weights<double> doubles;
              ShardedOptimizer of_doubles(rule, doubles.parameters());
              expect_error(report, ErrorCode::invalid_argument,
                           {"3 elements of f32 with 2 moments in a share, but 3 elements of f64"},
                           [&] { of_doubles.load(shares); });
              ShardedSgd sgd;
              ShardedOptimizer of_sgd(sgd, model.parameters());
              expect_error(report, ErrorCode::invalid_argument, {"with 0 moments here"},
                           [&] { of_sgd.load(shares); });
              optimizer.mark(0);
              expect_error(report, ErrorCode::invalid_argument, {"in the middle of a batch"},
                           [&] { static_cast<void>(optimizer.save()); });
          }) == "");
}

TEST_CASE("momentum that appears later, and a process set of some ranks") {
    CHECK(problems_among(3, [](Session& session, Report& report) {
              const auto set = ProcessSet::create({0, 2});
              if (session.rank() == 1) return;
              Weights<float> model;
              ShardedSgd rule;
              ShardedOptimizer optimizer(rule, model.parameters(), {.process_set = set});
              const auto before = model.values;
              model.backward_whole(session.rank());
              report.expect(optimizer.step() && model.values != before, "a step");
              check_consistent(model.parameters(), set);
              rule.momentum = 0.5;
              expect_error(report, ErrorCode::invalid_argument,
                           {"the rule now keeps 1 numbers for each element; it kept 0"},
                           [&] { optimizer.step(); });
          }) == "");
}
