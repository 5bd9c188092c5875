// The elements of tensors, on the host and on a device: the same bits.
#include <cmath>
#include <guozhuang/guozhuang.hpp>
#include <limits>

#include "support/cases/error_cases.hpp"
#include "support/fakes/slow_stream.hpp"
#include "support/oracles/device_elements.hpp"
#include "support/runner/catch.hpp"
#include "support/runner/environment.hpp"
#include "support/tensors/device_views.hpp"

using namespace guozhuang;
using namespace guozhuang::test;

namespace {

double norm_of(const TensorView& tensor) {
    return norm(std::span(&tensor, 1));
}

}  // namespace

TEST_CASE("the host fake scales and adds up squares as the host does") {
    check_elements(*make_fake_driver());
}

TEST_CASE("the norm is that of float64, on the host and on a device") {
    run_ranks(1, [](Session&) {
        std::vector<float> a(300'001), b{3}, none;
        long double squares = 9;
        for (std::size_t i = 0; i < a.size(); ++i) {
            a[i] = static_cast<float>(i % 1013) * 0.25F - 100;
            squares += static_cast<long double>(a[i]) * static_cast<long double>(a[i]);
        }
        const auto expected = static_cast<double>(std::sqrt(squares));
        const std::vector<TensorView> host{view_of(a), view_of(none), view_of(b)},
            device{view_of(a, on_fake_device), view_of(none, on_fake_device),
                   view_of(b, on_fake_device)},
            both{view_of(a, on_fake_device), view_of(none), view_of(b)};
        CHECK(std::abs(norm(host) - expected) <= 1e-13 * expected);
        CHECK(norm(device) == norm(host));
        CHECK(norm(both) == norm(host));
        CHECK(norm(std::vector<TensorView>{}) == 0);
        b[0] = std::numeric_limits<float>::quiet_NaN();
        CHECK(std::isnan(norm(device)));
    });
}

TEST_CASE("a hash is the same on the host and on a device") {
    run_ranks(1, [](Session&) {
        for (const std::size_t count : {0, 1, 1000, 262'144, 600'001}) {
            std::vector<float> numbers(count, 0.5F);
            for (std::size_t i = 0; i < count; ++i) numbers[i] = static_cast<float>(i);
            const auto before = hash(view_of(numbers));
            CHECK(hash(view_of(numbers, on_fake_device)) == before);
            if (count == 0) continue;
            numbers.back() = -1;
            CHECK(hash(view_of(numbers)) != before);
            CHECK(hash(view_of(numbers, on_fake_device)) == hash(view_of(numbers)));
        }
    });
}

TEST_CASE("zero and scale are work on the stream; norm and hash wait for it") {
    run_ranks(1, [](Session&) {
        std::vector<float> numbers{1, 2};
        SlowStream stream;
        const ElementOptions on_stream{.stream = stream.ref()};
        zero(view_of(numbers, on_fake_device), on_stream);
        stream.launch([&] { numbers = {6, 8}; });
        scale(view_of(numbers, on_fake_device), 0.5, on_stream);
        CHECK(numbers == std::vector<float>{1, 2});
        stream.let_go();
        const std::vector<TensorView> tensors{view_of(numbers, on_fake_device)};
        CHECK(norm(tensors, on_stream) == 5);
        CHECK(numbers == std::vector<float>{3, 4});
        CHECK(hash(tensors[0], on_stream) == hash(view_of(numbers)));
        zero(view_of(numbers));
        CHECK(numbers == std::vector<float>{0, 0});
    });
}

TEST_CASE("elements that cannot be worked on are refused") {
    CHECK(problems_among(1, [](Session&, Report& report) {
              std::vector<std::int32_t> integers(2);
              std::vector<float> numbers(4);
              auto strided = view_of(numbers);
              strided.strides = {2};
              const auto bad = ErrorCode::invalid_argument;
              expect_error(report, bad, {"norm", "i32"}, [&] { norm_of(integers); });
              expect_error(report, bad, {"scale", "i32"}, [&] { scale(integers, 2); });
              expect_error(report, bad, {"zero", "not contiguous"}, [&] { zero(strided); });
              expect_error(report, bad, {"hash", "device 7 does not exist"}, [&] {
                  hash(view_of(numbers, {DeviceKind::cuda, 7}));
              });
              zero(integers);
          }) == "");
}
