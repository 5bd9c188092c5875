#include "training/compressor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <guozhuang/operations.hpp>
#include <limits>
#include <map>
#include <new>
#include <span>
#include <utility>

#include "base/error_text.hpp"
#include "collectives/codecs/integers.hpp"
#include "collectives/codecs/largest.hpp"
#include "collectives/codecs/low_rank.hpp"
#include "collectives/codecs/signs.hpp"
#include "training/refuse.hpp"
#include "training/values.hpp"

namespace guozhuang {
namespace {

using namespace codecs;

/// A gradient, and the errors of earlier steps: while a step encodes, together with the gradient.
struct Source {
    std::string name;
    std::span<float> gradient;
    Shape shape;
    std::vector<float> residual;
};

std::string text_of(const Shape& shape) {
    std::string text;
    for (const auto extent : shape) text += fmt::format("{}{}", text.empty() ? "[" : ", ", extent);
    return text.empty() ? "[]" : text + "]";
}

/// The common part of all codecs.
class ErrorFeedback : public Compressor {
public:
    ErrorFeedback(Bundles& bundles, const OptimizerOptions& options)
        : options_(options),
          set_(ranks_of(options.session, options.process_set)),
          ranks_(set_.size()),
          tokens_(bundles.tensors.size()) {
        for (std::size_t i = 0; i < tokens_.size(); ++i) {
            std::vector<NamedTensor> left;
            for (const auto& [name, tensor] : bundles.tensors[i]) {
                if (!options.uses.empty() && tensor.data == options.uses.data()) {
                    left.push_back({name, tensor});
                    continue;
                }
                const auto count = tensor.count();
                sources_.push_back({name,
                                    {static_cast<float*>(tensor.data), count},
                                    tensor.shape,
                                    std::vector<float>(count)});
            }
            left.push_back({fmt::format("bundle {}", i), tokens_[i]});
            bundles.tensors[i] = std::move(left);
        }
    }

    void append_agreements(std::vector<Agreement>& agreements) const override {
        const auto& [codec, density, rank, error_feedback] = options_.compression;
        agreements.push_back({.what = "kinds of compression",
                              .value = fmt::format("{}, density {}, rank {}, error feedback {}",
                                                   name_of(codec), density, rank, error_feedback)});
        for (const auto& source : sources_)
            agreements.push_back({.tensor = source.name,
                                  .what = "shapes of gradients",
                                  .value = text_of(source.shape)});
    }

    void reduce(const std::string& optimizer) override {
        for (auto& source : sources_) {
            if (!options_.compression.error_feedback) std::ranges::fill(source.residual, 0.0F);
            for (std::size_t i = 0; i < source.residual.size(); ++i)
                source.residual[i] += source.gradient[i];
        }
        name_ = "optimizer " + optimizer + ": ";
        try {
            exchange();
        } catch (const std::bad_alloc&) {
            set_.end_job_without_memory("DistributedOptimizer");
        } catch (...) {  // the batch has failed, and its gradients with it
            for (auto& source : sources_) std::ranges::fill(source.residual, 0.0F);
            throw;
        }
        for (auto& source : sources_)
            for (float& error : source.residual)
                if (!std::isfinite(error)) error = 0;
    }

protected:
    virtual void exchange() = 0;

    AllreduceOptions options_for(std::string_view what, ReduceOp op) const {
        return {.name = name_ + std::string(what), .op = op, .process_set = set_};
    }
    /// Multiplies a sum over these contributors.
    float factor(std::size_t contributors) const {
        const double count =
            options_.op == ReduceOp::average ? static_cast<double>(contributors) : 1;
        return static_cast<float>(options_.gradient_scale / count);
    }

    OptimizerOptions options_;
    ProcessSet set_;
    int ranks_;
    std::vector<Source> sources_;
    std::string name_;

private:
    std::vector<float> tokens_;
};

/// Two operations: the magnitudes that all ranks have in common, then integers.
class Integers final : public ErrorFeedback {
public:
    Integers(Bundles& bundles, const OptimizerOptions& options)
        : ErrorFeedback(bundles, options), levels_(std::max(1, integers::largest / ranks_)) {
        std::size_t blocks = 0, count = 1;
        for (const auto& source : sources_) {
            blocks += integers::blocks_of(source.residual.size());
            count += source.residual.size();
        }
        magnitudes_.resize(blocks);
        integers_.resize(count);
    }

private:
    void exchange() override {
        for_each([&](Source& source, auto magnitudes, auto) {
            integers::magnitudes(source.residual, magnitudes);
        });
        allreduce(magnitudes_, options_for("magnitudes", ReduceOp::max));
        for_each([&](Source& source, auto magnitudes, auto values) {
            integers::encode(source.residual, magnitudes, levels_, values);
        });
        integers_.back() = 1;  // joined ranks send none
        allreduce(integers_, options_for("integers", ReduceOp::sum));
        const float multiplier = factor(static_cast<std::size_t>(integers_.back()));
        for_each([&](Source& source, auto magnitudes, auto values) {
            integers::decode(values, magnitudes, levels_, multiplier, source.gradient);
        });
    }
    /// Calls `act` with each source, its blocks' magnitudes and its integers.
    template <class Act>
    void for_each(const Act& act) {
        std::span<float> magnitudes = magnitudes_;
        std::span<std::int8_t> values = integers_;
        for (auto& source : sources_) {
            const auto count = source.residual.size(), blocks = integers::blocks_of(count);
            act(source, magnitudes.first(blocks), values.first(count));
            magnitudes = magnitudes.subspan(blocks);
            values = values.subspan(count);
        }
    }

    int levels_;
    std::vector<float> magnitudes_;
    std::vector<std::int8_t> integers_;
};

/// Every rank gets every other's message, and adds up what they stand for, in the order of ranks.
class Gathered : public ErrorFeedback {
public:
    using ErrorFeedback::ErrorFeedback;

private:
    virtual std::size_t bytes_of(std::size_t count) const = 0;
    virtual void encode(Source& source, std::span<std::uint8_t> message) = 0;
    virtual void decode(std::span<const std::uint8_t> message, float factor,
                        std::span<float> sum) = 0;

    void exchange() override {
        std::size_t bytes = 0;
        for (const auto& source : sources_) bytes += bytes_of(source.residual.size());
        own_.resize(bytes);
        std::span<std::uint8_t> left = own_;
        for (auto& source : sources_) {
            const auto size = bytes_of(source.residual.size());
            encode(source, left.first(size));
            left = left.subspan(size);
        }
        if (bytes == 0) return;
        const auto all = all_gather(TensorView(own_, {1, static_cast<std::int64_t>(bytes)}),
                                    {.name = name_ + "messages", .process_set = set_});
        std::span<const std::uint8_t> messages = all.values<std::uint8_t>();
        const float multiplier = factor(messages.size() / bytes);
        for (auto& source : sources_) std::ranges::fill(source.gradient, 0.0F);
        for (; !messages.empty(); messages = messages.subspan(bytes)) {
            auto rest = messages.first(bytes);
            for (auto& source : sources_) {
                const auto size = bytes_of(source.residual.size());
                decode(rest.first(size), multiplier, source.gradient);
                rest = rest.subspan(size);
            }
        }
    }

    std::vector<std::uint8_t> own_;
};

class Signs final : public Gathered {
public:
    using Gathered::Gathered;

private:
    std::size_t bytes_of(std::size_t count) const override { return signs::bytes_of(count); }
    void encode(Source& source, std::span<std::uint8_t> message) override {
        signs::encode(source.residual, message);
    }
    void decode(std::span<const std::uint8_t> message, float factor,
                std::span<float> sum) override {
        signs::decode(message, factor, sum);
    }
};

class Largest final : public Gathered {
public:
    using Gathered::Gathered;

private:
    std::size_t bytes_of(std::size_t count) const override {
        return largest::number_of(count, options_.compression.density) * sizeof(largest::Entry);
    }
    void encode(Source& source, std::span<std::uint8_t> message) override {
        entries_.resize(message.size() / sizeof(largest::Entry));
        largest::encode(source.residual, entries_);
        if (!message.empty()) std::memcpy(message.data(), entries_.data(), message.size());
    }
    void decode(std::span<const std::uint8_t> message, float factor,
                std::span<float> sum) override {
        entries_.resize(message.size() / sizeof(largest::Entry));
        if (!message.empty()) std::memcpy(entries_.data(), message.data(), message.size());
        largest::decode(entries_, factor, sum);
    }

    std::vector<largest::Entry> entries_;
};

/// Two operations: all left factors, then all right ones. Gradients that their factors would not
/// make smaller travel with the left ones, as they are.
class LowRank final : public ErrorFeedback {
public:
    LowRank(Bundles& bundles, const OptimizerOptions& options) : ErrorFeedback(bundles, options) {
        std::size_t left = 1, right = 0;
        for (const auto& source : sources_) {
            const auto extents = extents_of(source);
            left += extents.rank > 0 ? extents.left() : source.residual.size();
            right += extents.right();
        }
        left_.resize(left);
        right_.resize(right);
        low_rank::start(right_);
    }

private:
    low_rank::Extents extents_of(const Source& source) const {
        if (source.shape.size() < 2 || source.residual.empty()) return {};
        const auto rows = static_cast<std::size_t>(source.shape[0]),
                   columns = source.residual.size() / rows;
        const auto rank = static_cast<std::size_t>(options_.compression.rank);
        return rank * (rows + columns) < rows * columns ? low_rank::Extents{rows, columns, rank}
                                                        : low_rank::Extents{};
    }

    void exchange() override {
        for_each([&](const auto& extents, Source& source, auto left, auto right) {
            if (extents.rank > 0)
                low_rank::multiply(extents, source.residual, right, left);
            else
                std::ranges::copy(source.residual, left.begin());
        });
        left_.back() = 1;  // joined ranks send 0
        allreduce(left_, options_for("left factors", ReduceOp::sum));
        const float contributors = left_.back();
        for_each([&](const auto& extents, Source& source, auto left, auto right) {
            if (extents.rank == 0) {
                for (float& element : left) element /= contributors;
                return;
            }
            low_rank::orthonormalise(extents, left);
            low_rank::multiply_transposed(extents, source.residual, left, right);
        });
        allreduce(right_, options_for("right factors", ReduceOp::sum));
        for (float& element : right_) element /= contributors;
        const float scale = factor(1) * (options_.op == ReduceOp::sum ? contributors : 1);
        for_each([&](const auto& extents, Source& source, auto left, auto right) {
            if (extents.rank > 0)
                low_rank::product(extents, left, right, 1, source.gradient);
            else
                std::ranges::copy(left, source.gradient.begin());
            for (std::size_t i = 0; i < source.residual.size(); ++i) {
                source.residual[i] = extents.rank > 0 ? source.residual[i] - source.gradient[i] : 0;
                source.gradient[i] *= scale;
            }
            low_rank::restart(extents, right);
        });
    }
    /// Calls `act` with each source, its extents and its part of both buffers.
    template <class Act>
    void for_each(const Act& act) {
        std::span<float> left = left_, right = right_;
        for (auto& source : sources_) {
            const auto extents = extents_of(source);
            const auto taken = extents.rank > 0 ? extents.left() : source.residual.size();
            act(extents, source, left.first(taken), right.first(extents.right()));
            left = left.subspan(taken);
            right = right.subspan(extents.right());
        }
    }

    std::vector<float> left_, right_;
};

void check(const Bundles& bundles, const OptimizerOptions& options) {
    const auto name = base::quote(name_of(options.compression.codec));
    const auto fail = [&](const std::string& problem, const std::string& tensor = {}) {
        refuse(options.name, fmt::format("compression {} {}", name, problem), tensor);
    };
    if (options.op != ReduceOp::average && options.op != ReduceOp::sum)
        fail(fmt::format("takes op average or sum, not '{}'", name_of(options.op)));
    if (options.memory == Memory::share) fail("and memory 'share' do not go together");
    if (!(options.compression.density > 0 && options.compression.density <= 1))
        fail(fmt::format("has a density of {}; it must be above 0 and 1 at most",
                         options.compression.density));
    if (options.compression.rank < 1)
        fail(fmt::format("has a rank of {}; it must be 1 at least", options.compression.rank));
    const int ranks = ranks_of(options.session, options.process_set).size();
    if (options.compression.codec == Codec::int8 && ranks > integers::largest)
        fail(fmt::format("takes {} ranks at most; there are {}", integers::largest, ranks));
    std::map<const std::byte*, std::pair<const std::byte*, std::string>> memory;  // end, name
    for (const auto& bundle : bundles.tensors)
        for (const auto& [tensor_name, tensor] : bundle) {
            const auto bytes = tensor.memory();
            if (tensor.data == nullptr && !bytes.empty())
                fail(base::quote(tensor_name) + " has no memory", tensor_name);
            if (!tensor.strides.empty())
                fail(fmt::format("takes contiguous gradients; {} has strides",
                                 base::quote(tensor_name)),
                     tensor_name);
            if (tensor.count() > std::numeric_limits<std::uint32_t>::max())
                fail(fmt::format("takes 2^32 elements at most; {} has {}", base::quote(tensor_name),
                                 tensor.count()),
                     tensor_name);
            if (!bytes.empty() &&
                !memory.emplace(bytes.data(), std::pair(bytes.data() + bytes.size(), tensor_name))
                     .second)
                fail(base::quote(tensor_name) + " has the memory of another gradient", tensor_name);
            if (tensor.dtype != DType::f32)
                fail(fmt::format("takes f32 gradients; {} has {}", base::quote(tensor_name),
                                 name_of(tensor.dtype)),
                     tensor_name);
            if (tensor.device.kind != DeviceKind::host)
                fail(fmt::format("takes gradients on the host; {} is on {}",
                                 base::quote(tensor_name), name_of(tensor.device.kind)),
                     tensor_name);
        }
    const std::byte* end = nullptr;
    for (const auto& [begin, rest] : memory) {
        if (begin < end) fail(base::quote(rest.second) + " overlaps another gradient", rest.second);
        end = rest.first;
    }
}

}  // namespace

std::string_view name_of(Codec codec) noexcept {
    switch (codec) {
        case Codec::none: return "none";
        case Codec::int8: return "int8";
        case Codec::onebit: return "onebit";
        case Codec::topk: return "topk";
        case Codec::powersgd: return "powersgd";
    }
    return "unknown";
}

std::unique_ptr<Compressor> make_compressor(Bundles& bundles, const OptimizerOptions& options) {
    const auto codec = options.compression.codec;
    if (codec == Codec::none) return nullptr;
    if (codec > last_of(Codec{})) refuse(options.name, "there is no codec of that number");
    check(bundles, options);
    if (codec == Codec::int8) return std::make_unique<Integers>(bundles, options);
    if (codec == Codec::onebit) return std::make_unique<Signs>(bundles, options);
    if (codec == Codec::topk) return std::make_unique<Largest>(bundles, options);
    return std::make_unique<LowRank>(bundles, options);
}

}  // namespace guozhuang
