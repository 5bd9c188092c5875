#pragma once

#include <functional>
#include <future>
#include <guozhuang/stream.hpp>
#include <memory>
#include <utility>

#include "support/fakes/fake_driver.hpp"

namespace guozhuang::test {

/// A user's stream that stands still until it is released, like a device that is busy with earlier
/// work.
class SlowStream {
public:
    SlowStream() : driver_(make_fake_driver()), stream_(driver_->make_stream(0)) {
        launch([gate = gate_.get_future().share()] { gate.wait(); });
    }
    ~SlowStream() { let_go(); }
    SlowStream(const SlowStream&) = delete;
    SlowStream& operator=(const SlowStream&) = delete;

    void let_go() {
        if (!std::exchange(free_, true)) gate_.set_value();
    }
    void launch(std::function<void()> work) { test::launch(*stream_, std::move(work)); }
    StreamRef ref() const { return stream_->ref(); }
    /// Waits until all enqueued work is done.
    void finish() {
        std::promise<void> done;
        launch([&] { done.set_value(); });
        done.get_future().wait();
    }

private:
    std::promise<void> gate_;
    bool free_ = false;
    std::shared_ptr<device::Driver> driver_;
    std::shared_ptr<device::Stream> stream_;
};

}  // namespace guozhuang::test
