#pragma once

#include <atomic>
#include <functional>
#include <memory>

#include "device/device.hpp"

namespace guozhuang::device {

/// A device made of host memory and threads: a stream is a thread with a queue, an event a flag.
/// Only its streams order its work, as on a GPU, so scheduling, aborts and races of the engine are
/// tested without a GPU and under ThreadSanitizer. All fake drivers of a process know each other's
/// streams; each has its own default streams.
std::shared_ptr<Driver> make_fake_driver(int devices = 1);

/// Enqueues a function on a stream of the host fake, as a program enqueues its kernels. It must not
/// throw, nor drop the last reference to an event or stream.
void launch(Stream& stream, std::function<void()> work);

/// Called by every stream of the host fake in this process before each piece of its work; null:
/// nothing is. Tests make devices slow by it.
using BeforeWork = void();
extern std::atomic<BeforeWork*> before_work;

}  // namespace guozhuang::device
