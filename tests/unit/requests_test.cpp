// Requests that do not fit the transport are refused on the caller, before anything is sent.
#include "api/requests.hpp"

#include <algorithm>
#include <array>
#include <Eigen/Core>
#include <guozhuang/guozhuang.hpp>
#include <iterator>
#include <limits>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "runtime/runtime.hpp"
#include "support/cases/error_cases.hpp"
#include "support/fakes/forwarding_transport.hpp"
#include "support/runner/catch.hpp"
#include "wire/inproc/inproc_transport.hpp"

using namespace guozhuang;
using namespace guozhuang::test;

namespace {

/// The transport of a job of one whose messages carry small user tags only, as where MPI guarantees
/// no more.
class NarrowTransport final : public ForwardingTransport {
public:
    NarrowTransport() : ForwardingTransport(wire::InprocHub(1).transport(0)) {}
    std::uint16_t largest_user_tag() const noexcept override { return 1; }
    const char* description() const noexcept override { return "a narrow MPI"; }
};

}  // namespace

TEST_CASE("every enumerator has a name, and a number that is none reads past no table") {
    const auto check = [](auto last) {
        using Enum = decltype(last);
        for (int value = 0; value <= static_cast<int>(last); ++value)
            CHECK(name_of(static_cast<Enum>(value)) != "unknown");
        CHECK(name_of(static_cast<Enum>(static_cast<int>(last) + 1)) == "unknown");
        CHECK(name_of(static_cast<Enum>(
                  std::numeric_limits<std::underlying_type_t<Enum>>::max())) == "unknown");
    };
    check(last_of(DType{}));
    check(last_of(ReduceOp{}));
    check(last_of(Algorithm{}));
    check(last_of(DeviceKind{}));
    check(last_of(ErrorCode{}));
}

TEST_CASE("a shape is like a vector of extents, few or many") {
    Shape shape;
    std::vector<std::int64_t> expected;
    const auto resize = [&](std::size_t dimensions) {
        shape.resize(dimensions);
        expected.resize(dimensions);
        CHECK(std::ranges::equal(shape, expected));
    };
    for (std::int64_t extent = 1; extent <= 7; ++extent) {
        shape.push_back(extent);
        expected.push_back(extent);
        CHECK(std::ranges::equal(shape, expected));
        CHECK((shape.front() == 1 && shape.back() == extent));
        CHECK(shape == Shape(expected));
        CHECK(shape == Shape(expected.begin(), expected.end()));
        Shape copy = shape;
        const Shape moved = std::move(copy);
        CHECK(moved == shape);
        copy = {extent};
        CHECK((copy.size() == 1 && copy != Shape{extent, 1} && copy == Shape{extent}));
        shape.back() = -1;
        CHECK(moved != shape);
        shape.back() = extent;
    }
    for (const auto dimensions : {5U, 6U, 3U, 4U, 8U, 4U, 5U, 0U, 2U, 9U}) resize(dimensions);
    CHECK((Shape().empty() && count_of(Shape()) == 1 && count_of(Shape{2, 3}) == 6));
}

TEST_CASE("numbers are tensors, one or many, wherever they lie side by side") {
    std::array<double, 3> fixed{};
    std::int8_t plain[4] = {};
    std::vector<float> grown(5);
    const std::span<Half> none;
    const auto expect = [](const TensorView& tensor, const void* data, DType dtype,
                           const Shape& shape) {
        CHECK(tensor.data == data);
        CHECK(tensor.dtype == dtype);
        CHECK(tensor.shape == shape);
    };
    expect(fixed, fixed.data(), DType::f64, {3});
    expect(plain, plain, DType::i8, {4});
    expect(grown, grown.data(), DType::f32, {5});
    expect(std::span(grown).last(2), grown.data() + 3, DType::f32, {2});
    expect(none, nullptr, DType::f16, {0});
    expect(fixed[1], &fixed[1], DType::f64, {});
    expect({std::span(grown).first(4), {2, 2}}, grown.data(), DType::f32, {2, 2});
    expect({plain, {4, 1}}, plain, DType::i8, {4, 1});
    CHECK_THROWS_AS(TensorView(grown, {2, 2}), Error);
    CHECK_FALSE(std::is_constructible_v<TensorView, std::vector<float>>);  // would be gone at once
}

TEST_CASE("every integer of the language has a dtype, by sign and size") {
    CHECK(dtype_of<std::size_t> == DType::u64);
    CHECK((dtype_of<long> == DType::i64 && dtype_of<long long> == DType::i64 &&
           dtype_of<std::ptrdiff_t> == DType::i64));
    CHECK((dtype_of<unsigned long> == DType::u64 && dtype_of<unsigned long long> == DType::u64));
    CHECK((dtype_of<unsigned> == DType::u32 && dtype_of<std::uint16_t> == DType::u16 &&
           dtype_of<unsigned char> == DType::u8));
    // Numbers that were given to dtypes stay.
    CHECK((static_cast<int>(DType::f64) == 9 && static_cast<int>(DType::u64) == 12));
    CHECK_FALSE((Element<char> || Element<char16_t> || Element<wchar_t> || Element<long double> ||
                 Element<const int>));
}

namespace {

/// A tensor as users write them.
struct OwnTensor {
    std::vector<float> numbers = std::vector<float>(6);
    float* data() { return numbers.data(); }
    const float* data() const { return numbers.data(); }
    std::size_t size() const { return numbers.size(); }
};

/// The expression throws an Error that has this in its text.
template <class Body>
bool is_refused(const char* text, Body&& body) {
    const auto error = error_of(body);
    return error && error->code() == ErrorCode::invalid_argument &&
           std::string(error->what()).find(text) != std::string::npos;
}

}  // namespace

TEST_CASE("whatever has data() and size() is a tensor; where it is const, one that is only read") {
    OwnTensor own;
    const OwnTensor& constant = own;
    const TensorView view = own;
    CHECK((view.data == own.data() && view.dtype == DType::f32 && view.shape == Shape{6}));
    CHECK(TensorView(own, {2, 3}).shape == Shape{2, 3});
    CHECK(ConstTensorView(own).view().data == own.data());
    CHECK(ConstTensorView(constant).view().data == own.data());
    CHECK(ConstTensorView(constant, {3, 2}).view().shape == Shape{3, 2});
    CHECK(ConstTensorView(view).view().shape == Shape{6});
    CHECK_THROWS_AS(ConstTensorView(constant, {4}), Error);
    const double number = 1;
    CHECK((ConstTensorView(number).view().data == &number &&
           ConstTensorView(number).view().shape.empty()));
    CHECK(ConstTensorView(std::span<const float>(own.numbers).last(2)).view().data ==
          own.data() + 4);
    CHECK_FALSE((std::is_constructible_v<TensorView, OwnTensor> ||
                 std::is_constructible_v<ConstTensorView, OwnTensor>));
}

TEST_CASE("a pointer and a shape are a tensor of what is pointed to") {
    std::array<double, 6> numbers{};
    double* const first = numbers.data();
    const double* const constant = first;
    const TensorView view(first, {2, 3});
    CHECK((view.data == first && view.dtype == DType::f64 && view.shape == Shape{2, 3}));
    CHECK(TensorView(first, {6}, {DeviceKind::cuda, 1}).device == Device{DeviceKind::cuda, 1});
    CHECK(ConstTensorView(first, {6}).view().dtype == DType::f64);
    CHECK(ConstTensorView(constant, {3, 2}).view().shape == Shape{3, 2});
    double array[6] = {};
    CHECK_THROWS_AS(TensorView(array, {7}), Error);  // the number of its elements is known
    CHECK_FALSE((std::is_constructible_v<TensorView, double*> ||
                 std::is_constructible_v<ConstTensorView, double*>));
}

TEST_CASE(
    "Eigen's vectors and matrices are tensors, and parts of them whose elements lie side by side") {
    Eigen::MatrixXf matrix(3, 4);
    Eigen::VectorXd vector(5);
    const Eigen::VectorXd& constant = vector;
    CHECK((TensorView(matrix).data == matrix.data() && TensorView(matrix).shape == Shape{12}));
    CHECK((TensorView(vector).dtype == DType::f64 &&
           ConstTensorView(constant).view().data == vector.data()));
    auto column = matrix.col(1);
    auto columns = matrix.middleCols(1, 2);
    CHECK((TensorView(column).data == &matrix(0, 1) && TensorView(column).shape == Shape{3}));
    CHECK(TensorView(columns).shape == Shape{6});
    auto row = matrix.row(1);
    auto corner = matrix.topLeftCorner(2, 2), dot = matrix.topLeftCorner(1, 1);
    CHECK(is_refused("do not lie side by side", [&] { TensorView{row}; }));
    CHECK(is_refused("do not lie side by side", [&] { TensorView{corner}; }));
    CHECK(is_refused("do not lie side by side", [&] { ConstTensorView{std::as_const(corner)}; }));
    CHECK(TensorView(dot).shape == Shape{1});
}

TEST_CASE("what is only read may be const: the samples of a rank reach the others") {
    CHECK(problems_among(3, [](Session& session, Report& report) {
              const DistributedSampler sampler(7, {.shuffle = false, .tail = Tail::uneven});
              const auto all = all_gather(sampler.indices());
              report.expect(
                  all.dtype == DType::u64 && all.shape == Shape{7} && all.rows.size() == 3,
                  "gathered");
              const std::vector<std::uint32_t> mine(4, 7);
              std::vector<std::uint32_t> theirs(4);
              if (session.rank() == 0) send(mine, 1);
              if (session.rank() == 1) recv(theirs, 0);
              report.expect(session.rank() != 1 || theirs == mine, "received");
              const std::vector<std::uint16_t> terms(3, 30'000);
              report.expect(reduce_scatter(terms).as<std::uint16_t>()[0] == 90'000 % 65'536,
                            "summed");
          }) == "");
}

TEST_CASE("a user tag beyond what the transport carries is refused, and the next message passes") {
    Runtime runtime(std::make_unique<NarrowTransport>(), {});
    int out = 7, in = 0;
    const auto start = [&](const TensorView& tensor, std::uint16_t tag, bool sending) {
        return Handle(api::submit_point_to_point(
            *runtime.world(), tensor, {.peer = 0, .tag = tag, .sending = sending}, {}, false));
    };
    for (const bool sending : {true, false}) {
        const auto error = error_of([&] { start(out, 2, sending); });
        REQUIRE(error);
        CHECK(error->code() == ErrorCode::invalid_argument);
        CHECK(error->what() == std::string(sending ? "send" : "recv") +
                                   ": tag 2 is too large for a narrow MPI; at most 1");
    }
    const auto sent = start(out, 1, true), received = start(in, 1, false);
    sent.wait();
    received.wait();
    CHECK(in == 7);
    runtime.close();
}

TEST_CASE("tensors of a group that are on two devices are named, with the devices") {
    run_ranks(1, [](Session&) {
        std::array<float, 3> numbers{};
        const auto view = [&](std::size_t i, Device device) {
            return TensorView(&numbers[i], DType::f32, {1}, device);
        };
        const Device fake{DeviceKind::cuda, 0}, other{DeviceKind::cuda, 1};
        CHECK_THROWS_WITH(
            Plan({{{"a", view(0, fake)}, {"b", view(1, fake)}, {"c", view(2, other)}}}),
            Catch::Matchers::Contains("tensor 'a' is on cuda 0, but 'c' on cuda 1: "
                                      "they must be on one device"));
        CHECK_THROWS_WITH(
            grouped_allreduce(std::vector{view(0, fake), view(1, {})}),
            Catch::Matchers::Contains("tensor [0] is on cuda 0, but [1] on the host"));
    });
}
