// What a request asks for must fit the transport: refused on the caller, before anything is sent.
#include "api/requests.hpp"
#include "api/runtime.hpp"

#include <array>
#include <iterator>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

#include "api/runtime.hpp"
#include "support/catch.hpp"
#include "support/error_cases.hpp"
#include "wire/inproc/inproc_transport.hpp"

using namespace guozhuang;
using namespace guozhuang::test;

namespace {

/// The transport of a job of one whose messages carry small user tags only, as where MPI guarantees no more.
class NarrowTransport final : public wire::Transport {
public:
    int rank() const noexcept override { return wide_->rank(); }
    int size() const noexcept override { return wide_->size(); }
    Ticket send(int to, wire::Tag tag, std::span<const std::byte> bytes) override { return wide_->send(to, tag, bytes); }
    Ticket receive(int from, wire::Tag tag, std::span<std::byte> bytes) override { return wide_->receive(from, tag, bytes); }
    bool test(Ticket& ticket) override { return wide_->test(ticket); }
    std::optional<Message> poll(wire::Tag tag) override { return wide_->poll(tag); }
    bool flushed() override { return wide_->flushed(); }
    void abort(const base::AbortCause& cause) noexcept override { wide_->abort(cause); }
    bool abandon() noexcept override { return wide_->abandon(); }
    base::Activity& activity() noexcept override { return wide_->activity(); }
    std::optional<base::Neighbour> look_at(int rank) override { return wide_->look_at(rank); }
    base::Doorbell& doorbell() noexcept override { return wide_->doorbell(); }
    wire::Staging staging() noexcept override { return wide_->staging(); }
    void count_staged(std::size_t bytes) noexcept override { wide_->count_staged(bytes); }
    void nudge(int rank) noexcept override { wide_->nudge(rank); }
    const base::WaitSettings& wait_settings() const noexcept override { return wide_->wait_settings(); }
    const std::vector<int>& hosts() const noexcept override { return wide_->hosts(); }
    std::uint16_t largest_user_tag() const noexcept override { return 1; }
    const char* description() const noexcept override { return "a narrow MPI"; }
    void close() override { wide_->close(); }
    Traffic traffic() const noexcept override { return wide_->traffic(); }

private:
    std::unique_ptr<wire::Transport> wide_ = wire::InprocHub(1).transport(0);
};

}  // namespace

TEST_CASE("every enumerator has a name, and a number that is none reads past no table") {
    const auto check = [](auto last) {
        using Enum = decltype(last);
        for (int value = 0; value <= static_cast<int>(last); ++value) CHECK(name_of(static_cast<Enum>(value)) != "unknown");
        CHECK(name_of(static_cast<Enum>(static_cast<int>(last) + 1)) == "unknown");
        CHECK(name_of(static_cast<Enum>(std::numeric_limits<std::underlying_type_t<Enum>>::max())) == "unknown");
    };
    check(*std::prev(std::end(all_dtypes)));
    check(*std::prev(std::end(all_reduce_ops)));
    check(Algorithm::hierarchical);
    check(DeviceKind::cuda);
    check(ErrorCode::internal);
}

TEST_CASE("numbers are tensors, one or many, wherever they lie side by side") {
    std::array<double, 3> fixed{};
    std::int8_t plain[4] = {};
    std::vector<float> grown(5);
    const std::span<Half> none;
    const auto expect = [](const TensorView& tensor, const void* data, DType dtype, const Shape& shape) {
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

TEST_CASE("a user tag beyond what the transport carries is refused, and the next message passes") {
    Runtime runtime(std::make_unique<NarrowTransport>(), {});
    int out = 7, in = 0;
    const auto start = [&](const TensorView& tensor, std::uint16_t tag, bool sending) {
        return Handle(api::submit_letter(*runtime.world(), tensor, {.peer = 0, .tag = tag, .sending = sending}, {}, false));
    };
    for (const bool sending : {true, false}) {
        const auto error = error_of([&] { start(out, 2, sending); });
        REQUIRE(error);
        CHECK(error->code() == ErrorCode::invalid_argument);
        CHECK(error->what() == std::string(sending ? "send" : "recv") + ": tag 2 is too large for a narrow MPI; at most 1");
    }
    const auto sent = start(out, 1, true), received = start(in, 1, false);
    sent.wait();
    received.wait();
    CHECK(in == 7);
    runtime.close();
}
