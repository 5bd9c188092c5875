#pragma once

#include <atomic>
#include <functional>
#include <guozhuang/error.hpp>
#include <string>

#include "engine/backend.hpp"

namespace guozhuang::test {

/// A bundle on a device that remembers how the work on it ended.
struct RecordedBundle final : engine::StreamBundle {
    const engine::Bundle& bundle() const noexcept override { return contents; }
    bool attempt(const std::function<void()>& work) noexcept override {
        try {
            work();
        } catch (const Error& error) {
            failure = error.what();
            has_failed = true;
        }
        return !has_failed;
    }

    void make_contributions(const std::shared_ptr<device::Driver>&, device::Stream&) override {}

    engine::Bundle contents;
    std::string failure;  ///< once it has failed
    std::atomic<bool> has_failed{false};
};

/// Counts the bundles that it gets.
class CountingBackend final : public engine::Backend {
public:
    explicit CountingBackend(std::atomic<int>& moved) : moved_(moved) {}
    void run(const engine::Bundle&) override { ++moved_; }

private:
    std::atomic<int>& moved_;
};

}  // namespace guozhuang::test
