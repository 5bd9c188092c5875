#include <algorithm>
#include <array>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "method.hpp"

namespace guozhuang::experiment {

double Training::backward(std::size_t step, const std::function<void(std::size_t)>& done) {
    const auto begin = std::chrono::steady_clock::now();
    const double loss = task.backward(step, share, done);
    if (slowness > 1)
        std::this_thread::sleep_for((std::chrono::steady_clock::now() - begin) * (slowness - 1));
    return loss;
}

namespace {

constexpr int accumulated_passes = 4;

/// The task's own optimizer.
struct LocalOptimizer {
    Task& task;
    void step() { task.update(); }
};

class Single final : public Method {
public:
    explicit Single(const Training& training) : training_(training) {
        if (training.share.of > 1) throw std::runtime_error("single takes one rank");
    }
    double step(std::size_t number) override {
        const double loss = training_.backward(number);
        training_.task.update();
        return loss;
    }
    Counters counters() const override { return {training_.task.state_bytes()}; }

private:
    Training training_;
};

/// Every gradient goes to rank 0, which alone steps, and sends all values back.
class Root final : public Method {
public:
    explicit Root(const Training& training)
        : training_(training), parameters_(training.task.parameters()) {
        broadcast_parameters(parameters_);
        if (rank() > 0) return;
        for (const auto& parameter : parameters_)
            received_.emplace_back(parameter.gradient.count());
    }
    double step(std::size_t number) override {
        const double loss = training_.backward(number);
        if (rank() == 0) {
            for (int from = 1; from < size(); ++from) add_gradients(from);
            for (const auto& parameter : parameters_) scale(parameter.gradient, 1.0 / size());
            training_.task.update();
        } else {
            for (const auto& parameter : parameters_) send(parameter.gradient, 0);
        }
        broadcast_parameters(parameters_);
        return loss;
    }
    Counters counters() const override { return {rank() == 0 ? training_.task.state_bytes() : 0}; }

private:
    void add_gradients(int from) {
        for (std::size_t i = 0; i < parameters_.size(); ++i) {
            recv(TensorView(received_[i], parameters_[i].gradient.shape), from);
            auto* gradient = static_cast<float*>(parameters_[i].gradient.data);
            for (std::size_t j = 0; j < received_[i].size(); ++j) gradient[j] += received_[i][j];
        }
    }

    Training training_;
    std::vector<Parameter> parameters_;
    std::vector<std::vector<float>> received_;
};

/// The parameters, with rank 0's values on all ranks.
std::vector<Parameter> common_parameters(Task& task) {
    auto parameters = task.parameters();
    broadcast_parameters(parameters);
    return parameters;
}

class Sync final : public Method {
public:
    explicit Sync(const Training& training, const Compression& compression = {})
        : training_(training),
          local_{training.task},
          optimizer_(local_, common_parameters(training.task), {.compression = compression}) {}
    double step(std::size_t number) override {
        const double loss = training_.backward(number, optimizer_.on_gradient());
        optimizer_.step();
        return loss;
    }
    Counters counters() const override { return {training_.task.state_bytes()}; }

private:
    Training training_;
    LocalOptimizer local_;
    DistributedOptimizer<LocalOptimizer> optimizer_;
};

/// The task's backward overwrites gradients, so they are added up here.
class Accumulate final : public Method {
public:
    explicit Accumulate(const Training& training)
        : training_(training),
          parameters_(common_parameters(training.task)),
          sums_(sums_of(parameters_)),
          update_{*this},
          optimizer_(update_, with_sums(),
                     {.backward_passes_per_step = accumulated_passes,
                      .gradient_scale = 1.0 / accumulated_passes}) {}
    double step(std::size_t number) override {
        const double loss = training_.backward(number);
        for (std::size_t i = 0; i < sums_.size(); ++i) {
            const auto* gradient = static_cast<const float*>(parameters_[i].gradient.data);
            for (std::size_t j = 0; j < sums_[i].size(); ++j) sums_[i][j] += gradient[j];
        }
        optimizer_.step();
        return loss;
    }
    Counters counters() const override { return {training_.task.state_bytes()}; }

private:
    struct Update {
        Accumulate& owner;
        void step() { owner.update(); }
    };
    void update() {
        for (std::size_t i = 0; i < sums_.size(); ++i) {
            std::ranges::copy(sums_[i], static_cast<float*>(parameters_[i].gradient.data));
            std::ranges::fill(sums_[i], 0.0F);
        }
        training_.task.update();
    }
    static std::vector<std::vector<float>> sums_of(const std::vector<Parameter>& parameters) {
        std::vector<std::vector<float>> sums;
        for (const auto& parameter : parameters) sums.emplace_back(parameter.gradient.count());
        return sums;
    }
    std::vector<Parameter> with_sums() {
        auto parameters = parameters_;
        for (std::size_t i = 0; i < sums_.size(); ++i)
            parameters[i].gradient = TensorView(sums_[i], parameters[i].value.shape);
        return parameters;
    }

    Training training_;
    std::vector<Parameter> parameters_;
    std::vector<std::vector<float>> sums_;
    Update update_;
    DistributedOptimizer<Update> optimizer_;
};

/// Each rank steps by itself; an Averager brings the values together after each step.
template <class Averager>
class ByValues : public Method {
public:
    explicit ByValues(const Training& training)
        : training_(training),
          parameters_(common_parameters(training.task)),
          averager_(parameters_) {}
    double step(std::size_t number) override {
        const double loss = training_.backward(number);
        training_.task.update();
        averager_.step();
        return loss;
    }
    void finish() override {
        if constexpr (requires { averager_.synchronize(); })
            averager_.synchronize();
        else
            for (const auto& parameter : parameters_)
                allreduce(parameter.value, {.op = ReduceOp::average});
    }
    Counters counters() const override {
        Counters counters{training_.task.state_bytes()};
        if constexpr (requires { averager_.stalest(); })
            counters.stale_max = static_cast<std::size_t>(averager_.stalest());
        return counters;
    }

private:
    Training training_;
    std::vector<Parameter> parameters_;
    Averager averager_;
};

/// The task's optimizer as a rule. Several updates in a step share its rate.
struct TaskRule {
    const Task& task;
    std::size_t updates_per_step = 1;

    std::size_t moments() const { return task.rule(0).adam ? 2 : 1; }
    void operator()(const Shard<float>& shard) const {
        const auto rule = task.rule((shard.step - 1) / updates_per_step);
        const double rate = rule.rate / static_cast<double>(updates_per_step);
        if (rule.adam)
            ShardedAdam{.learning_rate = rate, .beta1 = rule.beta1, .beta2 = rule.beta2}(shard);
        else
            ShardedSgd{.learning_rate = rate, .momentum = rule.momentum}(shard);
    }
};

/// The task's optimizer, of which each rank keeps a share.
class Sharded final : public Method {
public:
    Sharded(const Training& training, bool shard_gradients)
        : training_(training),
          optimizer_(rule_, common_parameters(training.task),
                     {.shard_gradients = shard_gradients}) {}
    double step(std::size_t number) override {
        const double loss = training_.backward(number, optimizer_.on_gradient());
        optimizer_.step();
        return loss;
    }
    Counters counters() const override { return {optimizer_.state_bytes()}; }

private:
    Training training_;
    TaskRule rule_{training_.task};
    ShardedOptimizer optimizer_;
};

auto sharded(bool shard_gradients) {
    return [=](const Training& training) -> std::unique_ptr<Method> {
        return std::make_unique<Sharded>(training, shard_gradients);
    };
}

/// The servers keep the task's optimizer.
class Served final : public Method {
public:
    Served(const Training& training, const ParameterServerOptions& options)
        : training_(training),
          rule_{training_.task, options.contributions == 1 ? training.share.of : 1},
          server_(rule_, common_parameters(training.task), options) {}
    double step(std::size_t number) override {
        const double loss = training_.backward(number);
        server_.step();
        return loss;
    }
    void finish() override { server_.finish(); }
    Counters counters() const override {
        return {rank() == 0 ? training_.task.state_bytes() : 0,
                static_cast<std::size_t>(server_.largest_staleness()), server_.dropped()};
    }

private:
    Training training_;
    TaskRule rule_;
    ParameterServer server_;
};

/// `left_out`: contributions of so many ranks are not waited for.
auto served(ParameterServerOptions options, int left_out = 0) {
    return [=](const Training& training) mutable -> std::unique_ptr<Method> {
        if (left_out > 0) options.contributions = size() - left_out;
        if (left_out > 0 && options.contributions < 2)
            throw std::runtime_error("backup takes three ranks: with two it is ps_async");
        return std::make_unique<Served>(training, options);
    };
}

auto compressed(const Compression& compression) {
    return [=](const Training& training) -> std::unique_ptr<Method> {
        return std::make_unique<Sync>(training, compression);
    };
}

template <class M>
std::unique_ptr<Method> make(const Training& training) {
    return std::make_unique<M>(training);
}

}  // namespace

std::span<const MethodEntry> methods() {
    static const std::array all{
        MethodEntry{"single", "one process, the whole batch", "", make<Single>},
        MethodEntry{"root", "gradients go to rank 0, which steps and sends all values back",
                    "torch.nn.DataParallel", make<Root>},
        MethodEntry{"sync", "gradients are averaged by allreduce while backward runs",
                    "Sergeev and Del Balso 2018", make<Sync>},
        MethodEntry{"accumulate", "the same, over four batches at a time", "Ott et al. 2018",
                    make<Accumulate>, accumulated_passes},
        MethodEntry{"int8", "sync, a byte for each gradient element", "Mishchenko et al. 2022",
                    compressed({.codec = Codec::int8})},
        MethodEntry{"onebit", "sync, a bit for each gradient element",
                    "Seide et al. 2014, Karimireddy et al. 2019",
                    compressed({.codec = Codec::onebit})},
        MethodEntry{"topk", "sync, the largest hundredth of each gradient",
                    "Aji and Heafield 2017, Stich et al. 2018", compressed({.codec = Codec::topk})},
        MethodEntry{"powersgd", "sync, gradients as products of two matrices of rank 4",
                    "Vogels et al. 2019", compressed({.codec = Codec::powersgd})},
        MethodEntry{"zero1", "sync; each rank keeps and updates its share of the state",
                    "Rajbhandari et al. 2020", sharded(false)},
        MethodEntry{"zero2", "and of averaged gradients", "Rajbhandari et al. 2020", sharded(true)},
        MethodEntry{"local_sgd", "ranks step alone; every eighth step averages the values",
                    "Stich 2018", make<ByValues<LocalSgd>>},
        MethodEntry{"async_average", "ranks step alone; averages of values in the background",
                    "Zhang et al. 2015, Lian et al. 2018", make<ByValues<AsyncAverager>>},
        MethodEntry{"gossip", "ranks step alone, and average with one other after each step",
                    "Boyd et al. 2006, Lian et al. 2017", make<ByValues<Gossip>>},
        MethodEntry{"ps_sync", "rank 0 serves the values, and waits for all gradients",
                    "Li et al. 2014", served({})},
        MethodEntry{"ps_async", "rank 0 serves the values, and waits for nobody",
                    "Dean et al. 2012", served({.contributions = 1})},
        MethodEntry{"ps_stale", "the same, but no rank is over 4 steps ahead of the slowest",
                    "Ho et al. 2013", served({.contributions = 1, .max_staleness = 4})},
        MethodEntry{"backup", "rank 0 serves the values, and does not wait for the slowest rank",
                    "Chen et al. 2016", served({}, 1)},
    };
    return all;
}

}  // namespace guozhuang::experiment
