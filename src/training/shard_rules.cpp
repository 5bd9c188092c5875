#include <cmath>
#include <guozhuang/sharded_optimizer.hpp>

namespace guozhuang {
namespace {

template <class T>
void update(const ShardedSgd& rule, const Shard<T>& shard) {
    const auto rate = static_cast<T>(rule.learning_rate), decay = static_cast<T>(rule.weight_decay),
               momentum = static_cast<T>(rule.momentum);
    const auto count = shard.values.size();
    for (std::size_t i = 0; i < count; ++i) {
        auto& value = shard.values[i];
        const T slope = shard.gradients[i] + decay * value;
        if (shard.state.empty()) {
            value -= rate * slope;
            continue;
        }
        auto& velocity = shard.state[0][i];
        velocity = momentum * velocity + slope;
        value -= rate * (rule.nesterov ? slope + momentum * velocity : velocity);
    }
}

template <class T>
void update(const ShardedAdam& rule, const Shard<T>& shard) {
    const auto step = static_cast<double>(shard.step);
    const double correction = std::sqrt(1 - std::pow(rule.beta2, step));
    const auto rate = static_cast<T>(rule.learning_rate / (1 - std::pow(rule.beta1, step))),
               root = static_cast<T>(1 / correction), epsilon = static_cast<T>(rule.epsilon),
               kept = static_cast<T>(1 - rule.learning_rate * rule.weight_decay),
               beta1 = static_cast<T>(rule.beta1), beta2 = static_cast<T>(rule.beta2),
               rest1 = static_cast<T>(1 - rule.beta1), rest2 = static_cast<T>(1 - rule.beta2);
    const auto first = shard.state[0], second = shard.state[1];
    const auto count = shard.values.size();
    for (std::size_t i = 0; i < count; ++i) {
        const T slope = shard.gradients[i];
        first[i] = beta1 * first[i] + rest1 * slope;
        second[i] = beta2 * second[i] + rest2 * slope * slope;
        shard.values[i] =
            kept * shard.values[i] - rate * first[i] / (std::sqrt(second[i]) * root + epsilon);
    }
}

}  // namespace

void ShardedSgd::operator()(const Shard<float>& shard) const {
    update(*this, shard);
}
void ShardedSgd::operator()(const Shard<double>& shard) const {
    update(*this, shard);
}

void ShardedAdam::operator()(const Shard<float>& shard) const {
    update(*this, shard);
}
void ShardedAdam::operator()(const Shard<double>& shard) const {
    update(*this, shard);
}

}  // namespace guozhuang
