// A guarded member that is accessed without its mutex; clang-tidy must find it (lint.threads).
#include "base/mutex.hpp"

struct Counter {
    guozhuang::base::Mutex mutex;
    int count GUOZHUANG_GUARDED_BY(mutex) = 0;
};

void count_guarded(Counter& counter) {
    const guozhuang::base::Lock lock(counter.mutex);
    ++counter.count;
}

void count_unguarded(Counter& counter) {
    ++counter.count;
}
