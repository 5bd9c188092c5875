#pragma once

#include <memory>

#include "device/device.hpp"

namespace guozhuang::device {

/// A device made of host memory and threads: a stream is a thread with a queue, an event a flag.
/// What is ordered by streams on a GPU is ordered by streams here and by nothing else, so
/// scheduling, aborts and races of the engine are tested without a GPU and under ThreadSanitizer.
/// Memory is ordinary host memory. Streams of one fake driver are known to every other in the
/// process; its default streams are its own.
std::shared_ptr<Driver> make_fake_driver(int devices = 1);

}  // namespace guozhuang::device
