#include <algorithm>
#include <numeric>
#include <span>
#include <stdexcept>

#include "fashion_mnist/model.hpp"
#include "fashion_mnist/options.hpp"
#include "fashion_mnist/sgd.hpp"
#include "task.hpp"
#include "transformer/adam.hpp"
#include "transformer/model.hpp"
#include "transformer/options.hpp"
#include "transformer/text.hpp"

namespace guozhuang::experiment {
namespace {

/// The share's part of some samples.
std::span<const std::size_t> part_of(std::span<const std::size_t> samples, Share share) {
    const auto first = samples.size() * share.number / share.of,
               last = samples.size() * (share.number + 1) / share.of;
    return samples.subspan(first, last - first);
}

std::vector<std::size_t> first_numbers(std::size_t count) {
    std::vector<std::size_t> all(count);
    std::iota(all.begin(), all.end(), std::size_t{0});
    return all;
}

/// Parameters of a model whose tensors are spans, matrices with their shape: a bias follows the
/// weight of its layer and has an element for each column; the rows of tables have `width`.
template <class Model>
std::vector<Parameter> parameters_with_shapes(Model& model, std::size_t width) {
    auto parameters = parameters_of(model.parameters());
    for (std::size_t i = 0; i < parameters.size(); ++i) {
        auto& [name, value, gradient] = parameters[i];
        std::size_t columns = value.count();
        if (name.ends_with(".weight")) columns = parameters[i + 1].value.count();
        if (name == "tokens" || name == "positions") columns = width;
        if (columns == value.count()) continue;
        value.shape = gradient.shape = {static_cast<std::int64_t>(value.count() / columns),
                                        static_cast<std::int64_t>(columns)};
    }
    return parameters;
}

std::size_t bytes_of(const std::vector<Parameter>& parameters) {
    std::size_t bytes = 0;
    for (const auto& parameter : parameters) bytes += parameter.value.bytes();
    return bytes;
}

/// Fashion-MNIST in a small perceptron, by SGD with momentum.
class Fashion final : public Task {
public:
    explicit Fashion(const TaskOptions& options)
        : training_(fashion::load_dataset(directory(options), "train")),
          test_(fashion::load_dataset(directory(options), "t10k")),
          order_(training_.size(), options.batch, options.seed),
          model_(options.seed),
          rate_(options.rate > 0 ? options.rate : 0.05),
          steps_(options.steps),
          sgd_(model_.parameters(), static_cast<float>(rate_), steps_) {}

    std::vector<Parameter> parameters() override { return parameters_with_shapes(model_, 0); }
    double backward(std::size_t step, Share share,
                    const std::function<void(std::size_t)>& done) override {
        return model_.backward(batch_of(training_, part_of(order_.batch(step), share)), done);
    }
    void update() override { sgd_.step(); }
    Rule rule(std::size_t step) const override {
        const float done = static_cast<float>(step) / static_cast<float>(steps_);
        return {.momentum = static_cast<double>(fashion::momentum),
                .rate = static_cast<double>(static_cast<float>(rate_) * std::max(0.0F, 1 - done))};
    }
    std::size_t state_bytes() const override { return state_bytes_; }
    Score score(Share share) override {
        const auto all = first_numbers(test_.size());
        const auto own = part_of(all, share);
        Score score;
        for (const auto& batch : fashion::Batches(test_, own, 500)) {
            score.correct += static_cast<double>(model_.count_correct(batch));
            score.loss += model_.backward(batch) * static_cast<double>(batch.size());
            score.samples += static_cast<double>(batch.size());
        }
        return score;
    }

private:
    static std::filesystem::path directory(const TaskOptions& options) {
        return options.data.empty() ? fashion::Options{}.data : options.data;
    }
    static fashion::Batch batch_of(const fashion::Dataset& from,
                                   std::span<const std::size_t> samples) {
        return *fashion::Batches(from, samples, samples.size()).begin();
    }

    fashion::Dataset training_, test_;
    transformer::Order order_;
    fashion::Model model_;
    double rate_;
    std::size_t steps_;
    fashion::Sgd sgd_;
    std::size_t state_bytes_ = bytes_of(parameters_of(model_.parameters()));
};

/// The bytes of English sayings in a small GPT, by Adam.
class Gpt final : public Task {
public:
    explicit Gpt(const TaskOptions& options)
        : sayings_(transformer::load_sayings(options.data.empty() ? transformer::Options{}.data
                                                                  : options.data)),
          training_(part_of(sayings_, sayings_.size() / 10, sayings_.size()), size_.length),
          test_(part_of(sayings_, 0, sayings_.size() / 10), size_.length),
          order_(training_.size(), options.batch, options.seed),
          model_(size_, options.seed),
          rate_(static_cast<float>(options.rate > 0 ? options.rate : 3e-3)),
          adam_(model_.parameters(), rate_, options.steps) {}

    std::vector<Parameter> parameters() override {
        return parameters_with_shapes(model_, size_.width);
    }
    double backward(std::size_t step, Share share,
                    const std::function<void(std::size_t)>& done) override {
        const auto windows = experiment::part_of(order_.batch(step), share);
        return model_.backward(training_.batch(windows), done);
    }
    void update() override { adam_.step(); }
    Rule rule(std::size_t step) const override {
        return {.adam = true,
                .beta1 = static_cast<double>(transformer::Adam::beta1),
                .beta2 = static_cast<double>(transformer::Adam::beta2),
                .rate = std::max(0.0, static_cast<double>(adam_.rate(step)))};
    }
    std::size_t state_bytes() const override { return state_bytes_; }
    Score score(Share share) override {
        const auto all = first_numbers(test_.size());
        Score score;
        for (const auto& window : experiment::part_of(all, share)) {
            std::size_t correct = 0;
            score.loss += model_.loss(test_.batch(std::span(&window, 1)), &correct) *
                          static_cast<double>(size_.length);
            score.correct += static_cast<double>(correct);
            score.samples += static_cast<double>(size_.length);
        }
        return score;
    }

private:
    transformer::Size size_;
    transformer::Sayings sayings_;
    transformer::Windows training_, test_;
    transformer::Order order_;
    transformer::Model model_;
    float rate_;
    transformer::Adam adam_;
    std::size_t state_bytes_ = 2 * bytes_of(parameters_of(model_.parameters()));
};

}  // namespace

std::unique_ptr<Task> make_task(const TaskOptions& options) {
    if (options.model == "fashion") return std::make_unique<Fashion>(options);
    if (options.model == "gpt") return std::make_unique<Gpt>(options);
    throw std::runtime_error("there is no model '" + options.model + "': fashion or gpt");
}

}  // namespace guozhuang::experiment
