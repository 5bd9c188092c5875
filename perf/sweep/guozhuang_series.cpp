#include <fmt/format.h>

#include <guozhuang/operations.hpp>
#include <vector>

#include "sweep/collective.hpp"

namespace guozhuang::perf {
namespace {

class GuozhuangSeries final : public Series {
public:
    GuozhuangSeries(const Case& test, std::span<std::byte> input)
        : test_(test), tensor_(input.data(), test.dtype, shape_of(test)) {
        plain_.name = reducing_.name =
            fmt::format("gz-perf {} {}", name_of(test.collective), test.bytes());
        reducing_.op = test.op;
        for (int r = 0; r < test.ranks; ++r)
            splits_.push_back(static_cast<std::int64_t>(test.share(r).count));
    }

    std::string_view name() const noexcept override { return "guozhuang"; }

    void run() override {
        switch (test_.collective) {
            case Collective::allreduce: return allreduce(tensor_, reducing_);
            case Collective::broadcast: return broadcast(tensor_, Case::root, plain_);
            case Collective::barrier: return barrier(plain_);
            case Collective::all_gather: result_ = all_gather(tensor_, plain_).bytes; return;
            case Collective::reduce_scatter:
                result_ = reduce_scatter(tensor_, reducing_).bytes;
                return;
            case Collective::all_to_all:
                result_ = all_to_all(tensor_, splits_, plain_).bytes;
                return;
        }
    }

    std::span<const std::byte> result() const override {
        const bool in_place =
            test_.collective == Collective::allreduce || test_.collective == Collective::broadcast;
        return in_place ? tensor_.memory() : std::span<const std::byte>(result_);
    }

    void forget() override { result_ = {}; }

private:
    static Shape shape_of(const Case& test) {
        return {static_cast<std::int64_t>(test.input_count())};
    }

    Case test_;
    TensorView tensor_;
    Options plain_;
    AllreduceOptions reducing_;
    std::vector<std::int64_t> splits_;
    std::vector<std::byte> result_;
};

}  // namespace

std::unique_ptr<Series> make_guozhuang_series(const Case& test, std::span<std::byte> input) {
    return std::make_unique<GuozhuangSeries>(test, input);
}

}  // namespace guozhuang::perf
