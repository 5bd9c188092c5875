#include <fmt/format.h>

#include <guozhuang/operations.hpp>
#include <vector>

#include "sweep/collective.hpp"

namespace guozhuang::perf {
namespace {

class GuozhuangSeries final : public Series {
public:
    GuozhuangSeries(const Case& test, std::span<std::byte> input, std::span<std::byte> output,
                    const TensorDevice* device)
        : test_(test), tensor_(input.data(), test.dtype, shape_of(test.input_count())) {
        plain_.name = reducing_.name =
            fmt::format("gz-perf {} {}", name_of(test.collective), test.bytes());
        reducing_.op = test.op;
        for (int r = 0; r < test.ranks; ++r)
            splits_.push_back(static_cast<std::int64_t>(test.share(r).count));
        if (device != nullptr) move_to(*device, output);
    }

    std::string_view name() const noexcept override { return "guozhuang"; }

    void run() override {
        switch (test_.collective) {
            case Collective::allreduce: return allreduce(tensor_, reducing_);
            case Collective::broadcast: return broadcast(tensor_, Case::root, plain_);
            case Collective::barrier: return barrier(plain_);
            case Collective::all_gather: result_ = all_gather(tensor_, plain_); return;
            case Collective::reduce_scatter: result_ = reduce_scatter(tensor_, reducing_); return;
            case Collective::all_to_all: result_ = all_to_all(tensor_, splits_, plain_); return;
        }
    }

    std::span<const std::byte> result() const override {
        if (is_in_place(test_.collective)) return tensor_.memory();
        if (!reducing_.outputs.empty()) return reducing_.outputs.front().memory();
        return result_.bytes;
    }

    void forget() override { result_ = {}; }

private:
    static Shape shape_of(std::size_t count) { return {static_cast<std::int64_t>(count)}; }

    void move_to(const TensorDevice& device, std::span<std::byte> output) {
        plain_.stream = reducing_.stream = device.stream();
        tensor_.device = device.stream().device;
        if (is_in_place(test_.collective)) return;
        plain_.outputs = reducing_.outputs = {
            {output.data(), test_.dtype, shape_of(test_.output_count()), tensor_.device}};
    }

    Case test_;
    TensorView tensor_;
    Options plain_;
    AllreduceOptions reducing_;
    std::vector<std::int64_t> splits_;
    Result result_;
};

}  // namespace

std::unique_ptr<Series> make_guozhuang_series(const Case& test, std::span<std::byte> input,
                                              std::span<std::byte> output,
                                              const TensorDevice* device) {
    return std::make_unique<GuozhuangSeries>(test, input, output, device);
}

}  // namespace guozhuang::perf
