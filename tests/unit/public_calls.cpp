#include "public_calls.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <guozhuang/guozhuang.hpp>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>

#include "scarce_memory.hpp"

namespace guozhuang::test {
namespace {

using namespace std::chrono_literals;

constexpr int ranks = ranks_of_calls;

/// A rank's contribution: `count` elements of 1, 2 ... by rank.
std::vector<float> numbers_of(const Session& session, std::size_t count = 6) {
    return std::vector<float>(count, static_cast<float>(session.rank() + 1));
}
constexpr float sum = ranks * (ranks + 1) / 2;

void expect_all(Report& report, std::span<const float> numbers, float expected) {
    for (const auto number : numbers) report.expect_equal(number, expected, "a result");
}

/// The ranks' elements one after the other, `each` of every rank.
void expect_by_rank(Report& report, std::span<const float> numbers, std::size_t each) {
    report.expect_equal(numbers.size(), each * ranks, "the number of results");
    for (std::size_t i = 0; i < numbers.size(); ++i)
        report.expect_equal(numbers[i], static_cast<float>(i / each + 1), "a gathered result");
}

template <class T>
std::shared_ptr<T> kept(T value) {
    return std::make_shared<T>(std::move(value));
}

struct Tensor {
    std::vector<float> numbers;
    TensorView view{numbers};
};
std::shared_ptr<Tensor> tensor_of(const Session& session, std::size_t count = 6) {
    return kept(Tensor{numbers_of(session, count)});
}

constexpr const char* long_name = "a name that no string keeps in itself";

Call reducing(Session& session, const AllreduceOptions& options, std::size_t count = 6) {
    const auto tensor = tensor_of(session, count);
    return {{[=] { allreduce(tensor->view, options); }},
            [=](Report& report) { expect_all(report, tensor->numbers, sum); }};
}

Call reducing_async(Session& session, std::chrono::microseconds first_wait) {
    const auto tensor = tensor_of(session);
    const auto handle = kept(Handle());
    return {{[=] { detail::wait_first(first_wait); },
             [=] { *handle = allreduce_async(tensor->view); }, [=] { handle->wait(); }},
            [=](Report& report) { expect_all(report, tensor->numbers, sum); }};
}

Call reducing_group(Session& session) {
    const auto one = tensor_of(session), another = tensor_of(session, 70);
    const auto views = kept(std::vector{one->view, another->view});
    return {{[=] { grouped_allreduce(*views); }}, [=](Report& report) {
                expect_all(report, one->numbers, sum);
                expect_all(report, another->numbers, sum);
            }};
}

Call gathering(Session& session, const Options& options) {
    const auto tensor = tensor_of(session);
    const auto result = kept(Result());
    return {{[=] { *result = all_gather(tensor->view, options); }},
            [=](Report& report) { expect_by_rank(report, result->values<float>(), 6); }};
}

Call gathering_async(Session& session) {
    const auto tensor = tensor_of(session);
    const auto handle = kept(ResultHandle());
    const auto result = kept(Result());
    return {{[=] { *handle = all_gather_async(tensor->view); }, [=] { *result = handle->take(); }},
            [=](Report& report) { expect_by_rank(report, result->values<float>(), 6); }};
}

Call gathering_into(Session& session) {
    const auto tensor = tensor_of(session);
    const auto output = kept(std::vector<float>(6 * ranks));
    const auto options = kept(Options{.outputs = {*output}});
    return {{[=] { all_gather(tensor->view, *options); }},
            [=](Report& report) { expect_by_rank(report, *output, 6); }};
}

Call gathering_groups(Session& session) {
    const auto one = tensor_of(session), another = tensor_of(session, 4);
    const auto views = kept(std::vector{one->view, another->view});
    const auto results = kept(std::vector<Result>());
    return {{[one, another, views, results] { *results = grouped_all_gather(*views); }},
            [=](Report& report) {
                expect_by_rank(report, results->at(0).values<float>(), 6);
                expect_by_rank(report, results->at(1).values<float>(), 4);
            }};
}

Call scattering_groups(Session& session) {
    const auto one = tensor_of(session), another = tensor_of(session, 4);
    const auto views = kept(std::vector{one->view, another->view});
    const auto results = kept(std::vector<Result>());
    return {{[one, another, views, results] { *results = grouped_reduce_scatter(*views); }},
            [=](Report& report) {
                expect_all(report, results->at(0).values<float>(), sum);
                expect_all(report, results->at(1).values<float>(), sum);
            }};
}

Call broadcasting(Session& session) {
    const auto tensor = tensor_of(session);
    return {{[=] { broadcast(tensor->view, 1); }},
            [=](Report& report) { expect_all(report, tensor->numbers, 2); }};
}

Call exchanging(Session& session) {
    const auto tensor = tensor_of(session);
    const auto result = kept(Result());
    return {{[=] { *result = all_to_all(tensor->view); }},
            [=](Report& report) { expect_by_rank(report, result->values<float>(), 6 / ranks); }};
}

Call scattering(Session& session) {
    const auto tensor = tensor_of(session);
    const auto result = kept(Result());
    return {{[=] { *result = reduce_scatter(tensor->view); }}, [=](Report& report) {
                report.expect_equal(result->values<float>().size(), std::size_t{6 / ranks}, "part");
                expect_all(report, result->values<float>(), sum);
            }};
}

Call sending(Session& session) {
    const int rank = session.rank(), peer = 1 - rank;
    const auto tensor = tensor_of(session), received = tensor_of(session);
    const auto handle = kept(Handle());
    return {{[=] { *handle = send_async(tensor->view, peer); }, [=] { recv(received->view, peer); },
             [=] { handle->wait(); }},
            [=](Report& report) {
                expect_all(report, received->numbers, static_cast<float>(peer + 1));
            }};
}

Call waiting(Session&) {
    return {{[] { barrier(); }}};
}

Call joining(Session&) {
    const auto last = kept(-1);
    return {{[=] { *last = join(); }},
            [=](Report& report) { report.expect(*last == 0 || *last == 1, "who was last"); }};
}

Call using_a_set(Session& session) {
    const auto tensor = tensor_of(session);
    const auto set = kept(ProcessSet());
    return {{[=] {
                 *set = ProcessSet::create({0, 1});
             },
             [=] { allreduce(tensor->view, {.process_set = *set}); }, [=] { set->remove(); }},
            [=](Report& report) { expect_all(report, tensor->numbers, sum); }};
}

Call making_an_arena(Session& session) {
    const auto arena = std::make_shared<std::optional<GradientArena>>();
    const int rank = session.rank();
    const auto sums = kept(std::vector<float>(6));
    return {{[=] { arena->emplace(std::size_t{1} << 16); },
             [=] {
                 std::pmr::vector<float> numbers(6, static_cast<float>(rank + 1), &**arena);
                 allreduce(numbers);
                 std::ranges::copy(numbers, sums->begin());
             },
             [=] { arena->reset(); }},
            [=](Report& report) { expect_all(report, *sums, sum); }};
}

Call sharing(Session& session) {
    const auto tensor = tensor_of(session, 20'000);
    const auto memory = kept(SharedMemory());
    return {{[=] { *memory = share(std::span(&tensor->view, 1)); },
             [=] { allreduce(tensor->view); }, [=] { *memory = SharedMemory(); }},
            [=](Report& report) { expect_all(report, tensor->numbers, sum); }};
}

/// Two bundles, of which the rank that discards keeps one back.
Call planning(Session& session) {
    const auto one = kept(numbers_of(session)), another = kept(numbers_of(session));
    const auto bundles =
        kept(std::vector<std::vector<NamedTensor>>{{{"one", *one}}, {{"another", *another}}});
    const auto plan = kept(std::optional<Plan>());
    return {{[=] { plan->emplace(*bundles, PlanOptions{.op = ReduceOp::sum}); },
             [=] {
                 plan->value().agree({{"one", "values of this test", "1"}});
             },
             [=] { plan->value().ready(0); }, [=] { plan->value().ready(1); },
             [=] { plan->value().wait(); }, [=] { plan->reset(); }},
            [=](Report& report) {
                expect_all(report, *one, sum);
                expect_all(report, *another, sum);
            }};
}

/// A plan that ends with a bundle under way.
Call dropping_a_plan(Session& session) {
    const auto tensor = tensor_of(session);
    const auto bundles = kept(std::vector<std::vector<NamedTensor>>{{{"one", tensor->view}}});
    const auto plan = kept(std::optional<Plan>());
    return {{[tensor, bundles, plan] { plan->emplace(*bundles); }, [=] { plan->value().ready(0); },
             [=] { plan->reset(); }}};
}

/// It takes no memory.
struct Refusal : std::exception {};

struct Model {
    std::vector<float> values = std::vector<float>(40), gradients = std::vector<float>(40);
    std::vector<float> bias = {0}, bias_gradient = {0};
    bool refuses = false;
    std::vector<Parameter> parameters() {
        return {{"a weight whose name is rather long", values, gradients},
                {"bias", bias, bias_gradient}};
    }
    void backward(int rank, const std::function<void(std::size_t)>& hook) {
        gradients.assign(gradients.size(), static_cast<float>(rank + 1));
        bias_gradient[0] = static_cast<float>(rank + 1);
        for (const std::size_t parameter : {std::size_t{1}, std::size_t{0}}) hook(parameter);
    }
    void step() {
        if (std::exchange(refuses, false)) throw Refusal();
        for (std::size_t i = 0; i < values.size(); ++i) values[i] += gradients[i];
        bias[0] += bias_gradient[0];
    }
};

/// As docs/errors.md writes the loop: what backward throws discards the batch, and every rank goes
/// on with the next. A model that refuses its step gets the same gradients again.
void train(Model& model, DistributedOptimizer<Model>& optimizer, int rank, int steps,
           bool with_hooks) {
    bool again = false;
    for (int done = 0; done < steps;) {
        try {
            const auto hook = optimizer.on_gradient();
            const auto mark = [&](std::size_t parameter) {
                if (with_hooks) hook(parameter);
            };
            if (!again) model.backward(rank, mark);
        } catch (const std::bad_alloc& error) {
            Scarcity::lift();
            optimizer.discard(error.what());
            continue;
        }
        try {
            optimizer.step();
            ++done;
            again = false;
        } catch (const Refusal&) {
            again = true;
        } catch (const std::bad_alloc&) {
            Scarcity::lift();
        } catch (const Error& error) {
            if (error.code() != ErrorCode::discarded) throw;
        }
    }
}

Call training(Session& session, bool with_hooks, Memory memory = Memory::as_is,
              bool refuses = false) {
    constexpr int steps = 2;
    const int rank = session.rank();
    const auto model = kept(Model());
    model->refuses = refuses;
    const auto parameters = kept(model->parameters());
    const auto optimizer = kept(std::optional<DistributedOptimizer<Model>>());
    const auto options =
        kept(OptimizerOptions{.bundle_bytes = 64, .first_bundle_bytes = 4, .memory = memory});
    return {
        {[=] { optimizer->emplace(*model, *parameters, *options); },
         [=] { train(*model, **optimizer, rank, steps, with_hooks); }, [=] { optimizer->reset(); }},
        [=](Report& report) {
            expect_all(report, model->values, steps * sum / ranks);
            expect_all(report, model->bias, steps * sum / ranks);
        }};
}

/// One rank discards the first batch.
Call discarding(Session& session) {
    const int rank = session.rank();
    const auto model = kept(Model());
    const auto parameters = kept(model->parameters());
    const auto optimizer = kept(std::optional<DistributedOptimizer<Model>>());
    const auto discard = [=] {
        if (rank == ranks - 1) return optimizer->value().discard("this rank will not have it");
        try {
            optimizer->value().step();
        } catch (const std::bad_alloc&) {  // that discards it, too
            Scarcity::lift();
        } catch (const Error& error) {
            if (error.code() != ErrorCode::discarded) throw;
        }
    };
    return {{[=] { optimizer->emplace(*model, *parameters); }, discard,
             [=] { train(*model, **optimizer, rank, 1, true); }, [=] { optimizer->reset(); }},
            [=](Report& report) { expect_all(report, model->values, sum / ranks); }};
}

Call helping(Session& session, const ProcessSet& set) {
    const auto model = kept(Model());
    const auto parameters = kept(model->parameters());
    model->values.assign(40, static_cast<float>(session.rank()));
    return {{[=] { broadcast_parameters(*parameters, 1, set); }},
            [=](Report& report) { expect_all(report, model->values, 1); }};
}

Call broadcasting_bytes(Session& session) {
    const auto bytes = kept(session.rank() == 1 ? std::string(100, 'x') : std::string());
    return {{[=] { broadcast_bytes(*bytes, 1); }}, [=](Report& report) {
                report.expect_equal(*bytes, std::string(100, 'x'), "the bytes");
            }};
}

Call gathering_bytes(Session& session) {
    const auto bytes = kept(std::string(static_cast<std::size_t>(40 + session.rank()), 'x'));
    const auto all = kept(std::vector<std::string>());
    return {{[=] { *all = all_gather_bytes(*bytes); }}, [=](Report& report) {
                report.expect(*all == std::vector{std::string(40, 'x'), std::string(41, 'x')},
                              "all bytes");
            }};
}

struct Stateful {
    std::vector<float> velocity;
    template <class V>
    void visit_state(V&& visit) {
        visit("a velocity with a rather long name", velocity);
    }
};

Call broadcasting_state(Session& session) {
    const auto state = kept(Stateful{numbers_of(session)});
    return {{[=] { broadcast_optimizer_state(*state, 1); }},
            [=](Report& report) { expect_all(report, state->velocity, 2); }};
}

Call checking(Session&) {
    const auto model = kept(Model());
    const auto parameters = kept(model->parameters());
    const auto norm = kept(0.0);
    model->backward(0, [](std::size_t) {});
    return {
        {[model, parameters] { check_consistent(*parameters); },
         [=] { GradientReducer(*parameters, {.name = "weights of a model"}).measure_sharing(); },
         [=] { *norm = clip_by_global_norm(*parameters, 1e9); }},
        [=](Report& report) { report.expect_equal(*norm, std::sqrt(41.0), "the norm"); }};
}

Call averaging(Session& session) {
    const auto metrics = kept(
        std::map<std::string, double>{{"a loss whose name is rather long", session.rank() + 1.0}});
    const auto averages = kept(std::map<std::string, double>());
    return {{[=] { *averages = average_metrics(*metrics); }}, [=](Report& report) {
                report.expect_equal(averages->begin()->second, 1.5, "the average");
            }};
}

Call sampling(Session& session) {
    const auto indices = kept(std::vector<std::size_t>());
    const auto expected = session.rank();
    return {{[=] { *indices = DistributedSampler(10, {.shuffle = false}).indices(); }},
            [=](Report& report) {
                report.expect_equal(indices->size(), std::size_t{5}, "samples");
                report.expect_equal(static_cast<int>(indices->front()), expected, "a sample");
            }};
}

Call opening(Session& session) {
    const int rank = session.rank();
    return {{[=] {
        const Session another;
        if (another.rank() != rank) throw std::logic_error("another rank");
    }}};
}

/// A session that could not close is over. The first rank closes later, when the other is gone.
Call closing(Session& session, std::chrono::milliseconds later) {
    const auto close = [&session, later] {
        if (session.rank() == 0) std::this_thread::sleep_for(later);
        try {
            session.close();
        } catch (const std::bad_alloc&) {
            Scarcity::lift();
            throw Error(ErrorCode::internal, "closing lacked memory");
        }
    };
    return {.steps = {close}, .closes = true};
}

/// All ranks fail alike, and the program goes on: not for lack of memory.
Call differing(Session& session) {
    const auto tensor = tensor_of(session, session.rank() == 0 ? 3 : 4);
    const auto failed = kept(false);
    return {{[=] {
                try {
                    allreduce(tensor->view);
                } catch (const Error& error) {
                    if (error.code() != ErrorCode::mismatch) throw;
                    *failed = true;
                }
            }},
            [=](Report& report) { report.expect(*failed, "it did not fail"); }};
}

}  // namespace

const std::vector<PublicCall>& public_calls() {
    static const std::vector<PublicCall> all{
        {"allreduce", [](Session& s) { return reducing(s, {}); }},
        {"allreduce by name", [](Session& s) { return reducing(s, {.name = long_name}); }},
        {"allreduce of much", [](Session& s) { return reducing(s, {}, 100'000); }},
        {"allreduce with a limit", [](Session& s) { return reducing(s, {.timeout = 60s}); }},
        {"allreduce_async", [](Session& s) { return reducing_async(s, 0s); }},
        {"allreduce_async that waits first", [](Session& s) { return reducing_async(s, 1s); }},
        {"grouped_allreduce", reducing_group},
        {"all_gather", [](Session& s) { return gathering(s, {}); }},
        {"all_gather by name", [](Session& s) { return gathering(s, {.name = long_name}); }},
        {"all_gather into an output", gathering_into},
        {"all_gather_async", gathering_async},
        {"grouped_all_gather", gathering_groups},
        {"grouped_reduce_scatter", scattering_groups},
        {"broadcast", broadcasting},
        {"all_to_all", exchanging},
        {"reduce_scatter", scattering},
        {"send and recv", sending},
        {"barrier", waiting},
        {"join", joining},
        {"ProcessSet", using_a_set},
        {"GradientArena", making_an_arena},
        {"share", sharing},
        {"Plan", planning},
        {"Plan that is dropped", dropping_a_plan},
        {"DistributedOptimizer", [](Session& s) { return training(s, false); }},
        {"DistributedOptimizer with hooks", [](Session& s) { return training(s, true); }},
        {"DistributedOptimizer that shares",
         [](Session& s) { return training(s, true, Memory::share); }},
        {"DistributedOptimizer::discard", discarding},
        {"DistributedOptimizer whose model refuses a step",
         [](Session& s) { return training(s, true, Memory::as_is, true); }},
        {"broadcast_parameters", [](Session& s) { return helping(s, {}); }},
        {"broadcast_parameters to a set",
         [](Session& s) {
             return helping(s, ProcessSet::create({0, 1}));
         }},
        {"broadcast_bytes", broadcasting_bytes},
        {"all_gather_bytes", gathering_bytes},
        {"broadcast_optimizer_state", broadcasting_state},
        {"check_consistent and measure_sharing", checking},
        {"average_metrics", averaging},
        {"allreduce of other shapes", differing},
        {"DistributedSampler", sampling},
        {"Session", opening},
        {"Session::close", [](Session& s) { return closing(s, 0ms); }},
        {"Session::close of another", [](Session& s) { return closing(s, 300ms); }},
    };
    return all;
}

Call idling(Session& session) {
    const auto tensor = tensor_of(session), gathered = tensor_of(session);
    const auto sums = kept(Handle());
    const auto all = kept(ResultHandle());
    const auto result = kept(Result());
    const auto doze = [](const Handle& handle) {
        const auto limit = std::chrono::steady_clock::now() + 60s;
        while (!handle.done() && std::chrono::steady_clock::now() < limit)
            std::this_thread::sleep_for(50us);
    };
    return {{[=] { *sums = allreduce_async(tensor->view); },
             [=] { *all = all_gather_async(gathered->view, {.name = long_name}); },
             [=] { doze(*sums); }, [=] { doze(*all); }, [=] { sums->wait(); },
             [=] { *result = all->take(); }},
            [=](Report& report) {
                expect_all(report, tensor->numbers, sum);
                expect_by_rank(report, result->values<float>(), 6);
            }};
}

}  // namespace guozhuang::test
