#include "training/compressor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <guozhuang/operations.hpp>
#include <new>
#include <span>
#include <utility>

#include "base/error_text.hpp"
#include "collectives/codecs/integers.hpp"
#include "collectives/codecs/largest.hpp"
#include "collectives/codecs/low_rank.hpp"
#include "collectives/codecs/signs.hpp"
#include "training/refuse.hpp"

namespace guozhuang {
namespace {

using namespace codecs;

/// A gradient, and what this rank would send of it: itself plus what earlier steps have kept back.
struct Source {
    std::span<float> gradient;
    Shape shape;
    std::vector<float> wanted;
};

/// The common part of all codecs. Buffers are made once, so that a step cannot fail for want of
/// them.
class Base : public Compressor {
public:
    Base(Bundles& bundles, const OptimizerOptions& options)
        : options_(options),
          set_(ranks_of(options)),
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
                sources_.push_back({{static_cast<float*>(tensor.data), count},
                                    tensor.shape,
                                    std::vector<float>(count)});
            }
            left.push_back({fmt::format("bundle {}", i), tokens_[i]});
            bundles.tensors[i] = std::move(left);
        }
    }

    void reduce(const std::string& optimizer) override {
        for (auto& source : sources_) {
            if (!options_.compression.error_feedback) std::ranges::fill(source.wanted, 0.0F);
            for (std::size_t i = 0; i < source.wanted.size(); ++i)
                source.wanted[i] += source.gradient[i];
        }
        try {
            name_ = "optimizer " + optimizer + ": ";
            exchange();
        } catch (const std::bad_alloc&) {
            set_.end_job_without_memory("DistributedOptimizer");
        }
    }

protected:
    virtual void exchange() = 0;

    AllreduceOptions by(std::string_view what, ReduceOp op) const {
        return {.name = name_ + std::string(what), .op = op, .process_set = set_};
    }
    /// By which a sum over so many ranks is multiplied.
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
class Integers final : public Base {
public:
    Integers(Bundles& bundles, const OptimizerOptions& options)
        : Base(bundles, options), levels_(std::max(1, integers::largest / ranks_)) {
        std::size_t blocks = 0, count = 1;
        for (const auto& source : sources_) {
            blocks += integers::blocks_of(source.wanted.size());
            count += source.wanted.size();
        }
        magnitudes_.resize(blocks);
        integers_.resize(count);
    }

private:
    void exchange() override {
        for_each([&](Source& source, auto magnitudes, auto) {
            integers::magnitudes(source.wanted, magnitudes);
        });
        allreduce(magnitudes_, by("magnitudes", ReduceOp::max));
        for_each([&](Source& source, auto magnitudes, auto values) {
            integers::encode(source.wanted, magnitudes, levels_, values);
        });
        integers_.back() = 1;  // joined ranks send none
        allreduce(integers_, by("integers", ReduceOp::sum));
        const float by_all = factor(static_cast<std::size_t>(integers_.back()));
        for_each([&](Source& source, auto magnitudes, auto values) {
            integers::decode(values, magnitudes, levels_, by_all, source.gradient);
        });
    }
    /// Calls `act` with each source, its blocks' magnitudes and its integers.
    template <class Act>
    void for_each(const Act& act) {
        std::span<float> magnitudes = magnitudes_;
        std::span<std::int8_t> values = integers_;
        for (auto& source : sources_) {
            const auto count = source.wanted.size(), blocks = integers::blocks_of(count);
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
class Gathered : public Base {
public:
    using Base::Base;

private:
    virtual std::size_t bytes_of(std::size_t count) const = 0;
    virtual void encode(Source& source, std::span<std::uint8_t> message) = 0;
    virtual void decode(std::span<const std::uint8_t> message, float factor,
                        std::span<float> sum) = 0;

    void exchange() override {
        std::size_t bytes = 0;
        for (const auto& source : sources_) bytes += bytes_of(source.wanted.size());
        own_.resize(bytes);
        std::span<std::uint8_t> left = own_;
        for (auto& source : sources_) {
            const auto size = bytes_of(source.wanted.size());
            encode(source, left.first(size));
            left = left.subspan(size);
        }
        const auto all = all_gather(TensorView(own_, {1, static_cast<std::int64_t>(bytes)}),
                                    {.name = name_ + "messages", .process_set = set_});
        std::span<const std::uint8_t> messages = all.values<std::uint8_t>();
        const float by_all = factor(messages.size() / bytes);
        for (auto& source : sources_) std::ranges::fill(source.gradient, 0.0F);
        for (; !messages.empty(); messages = messages.subspan(bytes)) {
            auto rest = messages.first(bytes);
            for (auto& source : sources_) {
                const auto size = bytes_of(source.wanted.size());
                decode(rest.first(size), by_all, source.gradient);
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
        signs::encode(source.wanted, message);
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
        largest::encode(source.wanted, entries_);
        std::memcpy(message.data(), entries_.data(), message.size());
    }
    void decode(std::span<const std::uint8_t> message, float factor,
                std::span<float> sum) override {
        entries_.resize(message.size() / sizeof(largest::Entry));
        std::memcpy(entries_.data(), message.data(), message.size());
        largest::decode(entries_, factor, sum);
    }

    std::vector<largest::Entry> entries_;
};

/// Two operations: all left factors, then all right ones. Gradients that their factors would not
/// make smaller travel with the left ones, as they are.
class LowRank final : public Base {
public:
    LowRank(Bundles& bundles, const OptimizerOptions& options) : Base(bundles, options) {
        std::size_t left = 0, right = 0;
        for (const auto& source : sources_) {
            const auto extents = extents_of(source);
            left += extents.rank > 0 ? extents.left() : source.wanted.size();
            right += extents.right();
        }
        left_.resize(left);
        right_.resize(right);
        low_rank::start(right_);
    }

private:
    low_rank::Extents extents_of(const Source& source) const {
        if (source.shape.size() < 2 || source.wanted.empty()) return {};
        const auto rows = static_cast<std::size_t>(source.shape[0]),
                   columns = source.wanted.size() / rows;
        const auto rank = static_cast<std::size_t>(options_.compression.rank);
        return rank * (rows + columns) < rows * columns ? low_rank::Extents{rows, columns, rank}
                                                        : low_rank::Extents{};
    }

    void exchange() override {
        for_each([&](const auto& extents, Source& source, auto left, auto right) {
            if (extents.rank > 0)
                low_rank::multiply(extents, source.wanted, right, left);
            else
                std::ranges::copy(source.wanted, left.begin());
        });
        allreduce(left_, by("left factors", ReduceOp::average));
        for_each([&](const auto& extents, Source& source, auto left, auto right) {
            if (extents.rank == 0) return;
            low_rank::orthonormalise(extents, left);
            low_rank::multiply_transposed(extents, source.wanted, left, right);
        });
        allreduce(right_, by("right factors", ReduceOp::average));
        const bool sums = options_.op == ReduceOp::sum;
        const auto scale = static_cast<float>(options_.gradient_scale * (sums ? ranks_ : 1));
        for_each([&](const auto& extents, Source& source, auto left, auto right) {
            if (extents.rank > 0)
                low_rank::product(extents, left, right, 1, source.gradient);
            else
                std::ranges::copy(left, source.gradient.begin());
            for (std::size_t i = 0; i < source.wanted.size(); ++i) {
                source.wanted[i] = extents.rank > 0 ? source.wanted[i] - source.gradient[i] : 0;
                source.gradient[i] *= scale;
            }
        });
    }
    /// Calls `act` with each source, its extents and its part of both buffers.
    template <class Act>
    void for_each(const Act& act) {
        std::span<float> left = left_, right = right_;
        for (auto& source : sources_) {
            const auto extents = extents_of(source);
            const auto taken = extents.rank > 0 ? extents.left() : source.wanted.size();
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
    for (std::size_t i = 0; i < bundles.tied_to.size(); ++i)
        if (bundles.tied_to[i] != i) fail("does not take gradients with the same memory");
    for (const auto& bundle : bundles.tensors)
        for (const auto& [tensor_name, tensor] : bundle) {
            if (tensor.dtype != DType::f32)
                fail(fmt::format("takes f32 gradients; {} has {}", base::quote(tensor_name),
                                 name_of(tensor.dtype)),
                     tensor_name);
            if (tensor.device.kind != DeviceKind::host)
                fail(fmt::format("takes gradients on the host; {} is on {}",
                                 base::quote(tensor_name), name_of(tensor.device.kind)),
                     tensor_name);
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

std::string name_of(const Compression& compression) {
    return fmt::format("{}, density {}, rank {}, error feedback {}", name_of(compression.codec),
                       compression.density, compression.rank, compression.error_feedback);
}

std::unique_ptr<Compressor> make_compressor(Bundles& bundles, const OptimizerOptions& options) {
    const auto codec = options.compression.codec;
    if (codec == Codec::none) return nullptr;
    check(bundles, options);
    if (codec == Codec::int8) return std::make_unique<Integers>(bundles, options);
    if (codec == Codec::onebit) return std::make_unique<Signs>(bundles, options);
    if (codec == Codec::topk) return std::make_unique<Largest>(bundles, options);
    return std::make_unique<LowRank>(bundles, options);
}

}  // namespace guozhuang
