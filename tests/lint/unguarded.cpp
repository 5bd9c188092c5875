// What clang-tidy must find (lint.threads): a guarded member that is touched without its mutex.
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
