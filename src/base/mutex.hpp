#pragma once

#include <mutex>

// Annotations that say which mutex guards what. clang checks them (-Wthread-safety, run by
// clang-tidy); for other compilers they are empty.
#if defined(__clang__)
#define GUOZHUANG_THREAD_ANNOTATION(annotation) __attribute__((annotation))
#else
#define GUOZHUANG_THREAD_ANNOTATION(annotation)
#endif

/// On a data member: it is accessed only with this mutex held.
#define GUOZHUANG_GUARDED_BY(mutex) GUOZHUANG_THREAD_ANNOTATION(guarded_by(mutex))
/// On a function: its caller holds this mutex.
#define GUOZHUANG_REQUIRES(mutex) GUOZHUANG_THREAD_ANNOTATION(requires_capability(mutex))
/// On a function: its caller does not hold this mutex, because the function takes it.
#define GUOZHUANG_EXCLUDES(mutex) GUOZHUANG_THREAD_ANNOTATION(locks_excluded(mutex))

namespace guozhuang::base {

/// A std::mutex with the annotations for clang.
class GUOZHUANG_THREAD_ANNOTATION(capability("mutex")) Mutex {
public:
    void lock() GUOZHUANG_THREAD_ANNOTATION(acquire_capability()) { mutex_.lock(); }
    bool try_lock() GUOZHUANG_THREAD_ANNOTATION(try_acquire_capability(true)) {
        return mutex_.try_lock();
    }
    void unlock() GUOZHUANG_THREAD_ANNOTATION(release_capability()) { mutex_.unlock(); }
    /// Tells clang that this thread holds the mutex, where clang cannot see it: in callbacks.
    void is_held() const noexcept GUOZHUANG_THREAD_ANNOTATION(assert_capability(this)) {}

private:
    std::mutex mutex_;
};

/// Holds a Mutex for the length of a scope.
class GUOZHUANG_THREAD_ANNOTATION(scoped_lockable) Lock {
public:
    explicit Lock(Mutex& mutex) GUOZHUANG_THREAD_ANNOTATION(acquire_capability(mutex))
        : mutex_(mutex) {
        mutex.lock();
    }
    /// Takes over a mutex that try_lock() has locked.
    Lock(Mutex& mutex, std::adopt_lock_t) GUOZHUANG_REQUIRES(mutex) : mutex_(mutex) {}
    ~Lock() GUOZHUANG_THREAD_ANNOTATION(release_capability()) { mutex_.unlock(); }
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

private:
    Mutex& mutex_;
};

}  // namespace guozhuang::base
