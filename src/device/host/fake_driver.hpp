#pragma once

#include <memory>

#include "device/device.hpp"

namespace guozhuang::device {

/// A device made of host memory and threads: a stream is a thread with a queue, an event a flag.
/// Only its streams order its work, as on a GPU, so scheduling, aborts and races of the engine are
/// tested without a GPU and under ThreadSanitizer. All fake drivers of a process know each other's
/// streams; each has its own default streams.
std::shared_ptr<Driver> make_fake_driver(int devices = 1);

}  // namespace guozhuang::device
