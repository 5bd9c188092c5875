#pragma once

#include <memory>
#include <utility>

#include "wire/transport.hpp"

namespace guozhuang::test {

/// Forwards to another transport; a test overrides what it wants to change.
class ForwardingTransport : public wire::Transport {
public:
    explicit ForwardingTransport(std::unique_ptr<wire::Transport> inner)
        : inner_(std::move(inner)) {}

    Ticket send(int to, wire::Tag tag, std::span<const std::byte> bytes) override {
        return inner_->send(to, tag, bytes);
    }
    Ticket receive(int from, wire::Tag tag, std::span<std::byte> bytes) override {
        return inner_->receive(from, tag, bytes);
    }
    bool test(Ticket& ticket) override { return inner_->test(ticket); }
    std::optional<Message> poll(wire::Tag tag) override { return inner_->poll(tag); }
    bool flushed() override { return inner_->flushed(); }
    void abort(const base::AbortCause& cause) noexcept override { inner_->abort(cause); }
    bool abandon() noexcept override { return inner_->abandon(); }
    trace::Activity& activity() noexcept override { return inner_->activity(); }
    std::optional<trace::RankStatus> look_at(int rank) override { return inner_->look_at(rank); }
    base::Doorbell& doorbell() noexcept override { return inner_->doorbell(); }
    std::size_t stage_bytes() const noexcept override { return inner_->stage_bytes(); }
    void count_staged(std::size_t bytes) noexcept override { inner_->count_staged(bytes); }
    void nudge(int rank, base::Audience audience) noexcept override {
        inner_->nudge(rank, audience);
    }
    const base::WaitSettings& wait_settings() const noexcept override {
        return inner_->wait_settings();
    }
    const topology::Topology& topology() const noexcept override { return inner_->topology(); }
    std::uint16_t largest_user_tag() const noexcept override { return inner_->largest_user_tag(); }
    const char* description() const noexcept override { return inner_->description(); }
    void close() override { inner_->close(); }
    Traffic traffic() const noexcept override { return inner_->traffic(); }

private:
    std::unique_ptr<wire::Transport> inner_;
};

}  // namespace guozhuang::test
