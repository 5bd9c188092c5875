#pragma once

#include <atomic>
#include <functional>
#include <memory>

#include "device/plugin.hpp"

namespace guozhuang::test {

/// A device made of host memory and threads: a stream is a thread with a queue, an event a flag.
/// Only its streams order its work, as on a GPU, so scheduling, aborts and races of the engine are
/// tested without a GPU and under ThreadSanitizer. All fake drivers of a process know each other's
/// streams; each has its own default streams. In a program that links it, each session has one
/// instead of CUDA.
std::shared_ptr<device::Driver> make_fake_driver(int devices = 1);

/// While it lives, sessions that use no device yet find the CUDA of this machine, if any.
class RealCuda {
public:
    RealCuda() : fake_(device::cuda_substitute.exchange(nullptr)) {}
    ~RealCuda() { device::cuda_substitute = fake_; }
    RealCuda(const RealCuda&) = delete;
    RealCuda& operator=(const RealCuda&) = delete;

private:
    device::MakeDriver* const fake_;
};

/// Enqueues a function on a stream of the host fake, as a program enqueues its kernels. It must not
/// throw, nor drop the last reference to an event or stream.
void launch(device::Stream& stream, std::function<void()> work);

/// Every stream of the host fake in this process calls this before each piece of its work, unless
/// it is null. Tests slow devices down with it.
extern std::atomic<void (*)()> before_work;

}  // namespace guozhuang::test
