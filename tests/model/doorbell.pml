// The doorbell (src/base/wait.cpp) as a model: two threads of a rank wait, a peer rings when it has
// news, another nudges when it has ended a round of staging, a local thread rings when it has work.
// The patient thread waits for the first news, then for two rounds one after another. The idle one
// sleeps until there is work, which rings from others must not disturb, and waits for the second
// news then. With -DCALLER_WAITS there are no rounds, and a caller of the rank waits behind the
// patient thread until that has ended what it drives. Sleeps have no time limit here, so a wake-up
// that is lost is a thread that sleeps for ever: an invalid end state. The threads are of one
// process set: a ring for another is to them like one that finds nobody asleep, counted and no
// more. The memory is sequentially consistent, as are the operations of the code; the count of
// rings does not wrap.
//
// A defect for the model to find: -DBUG_LOOK_BEFORE_COUNT, -DBUG_WAKE_ONE, -DBUG_NO_COMPARE,
// -DBUG_COUNT_AFTER_LOOK, -DBUG_NEWS_AFTER_NUDGE, -DBUG_OTHER_SET, -DBUG_COUNTS_BEFORE_RING; with a
// caller -DBUG_END_AS_NEWS.

#define BY_NEWS 1
#define BY_LOCAL 2
#define BY_NEWS_OF_OTHERS 4
#ifdef BUG_OTHER_SET
#define LAST_RING BY_NEWS_OF_OTHERS
#else
#define LAST_RING BY_NEWS
#endif
#define PATIENT 0
#define IDLE 1
#define CALLER 2

byte rings, for_news, behind, idle;  // the counts of sleepers in each way
byte sleeping[3];  // the kernel's: whom each thread lets itself be woken by, 0 if it is awake
byte news, rounds;
bool work, ended;

// The kernel compares the word and puts the thread to sleep in one step, and wakes in one step all
// whose bits match.
inline futex_wait(thread, expected, bits) {
    d_step {
        if
#ifdef BUG_NO_COMPARE
        :: sleeping[thread] = bits
#else
        :: rings == expected -> sleeping[thread] = bits
        :: else
#endif
        fi
    }
    sleeping[thread] == 0
}

inline wake(thread, bits) {
    if
    :: (sleeping[thread] & bits) != 0 -> sleeping[thread] = 0
    :: else
    fi
}

inline futex_wake(bits) {
    d_step {
#ifdef BUG_WAKE_ONE
        if
        :: (sleeping[IDLE] & bits) != 0 -> sleeping[IDLE] = 0
        :: else -> wake(PATIENT, bits)
        fi
#else
        wake(IDLE, bits);
        wake(PATIENT, bits);
        wake(CALLER, bits)
#endif
    }
}

// For news: base::ring() up to Sleepers::for_news.
inline ring(bits) {
    rings++;
    expected = for_news;
    if
    :: expected != 0 -> futex_wake(bits)
    :: else
    fi
}

// For news that are looked at with the same order of memory as the counts: base::nudge().
inline nudge() {
    expected = for_news;
    if
    :: expected != 0 -> ring(BY_NEWS)
    :: else
    fi
}

// For those who wait behind this thread: base::ring() up to Sleepers::behind.
inline ring_behind() {
    rings++;
    expected = behind;
    if
    :: expected != 0 -> futex_wake(BY_NEWS | BY_LOCAL)
    :: else ->
        expected = for_news;
        if
        :: expected != 0 -> futex_wake(BY_NEWS)
        :: else
        fi
    fi
}

// As WaitLoop::fall_asleep().
inline sleep(thread, bits) {
    if
    :: rings == seen -> futex_wait(thread, seen, bits)
    :: else
    fi
}

inline sleep_idle() {
    idle++;
    sleep(IDLE, BY_LOCAL);
    idle--
}

// A coordinator with nothing pending: WaitLoop::pause(Sleepers::idle). The rings are read before
// the look.
#ifdef BUG_LOOK_BEFORE_COUNT
#define SLEEP_IDLE_UNTIL(condition)                                                                \
    do                                                                                             \
    :: condition -> break                                                                          \
    :: else -> seen = rings; sleep_idle()                                                          \
    od
#else
#define SLEEP_IDLE_UNTIL(condition)                                                                \
    do                                                                                             \
    :: seen = rings;                                                                               \
       if                                                                                          \
       :: condition -> break                                                                       \
       :: else -> sleep_idle()                                                                     \
       fi                                                                                          \
    od
#endif

// wait_until() with a WaitLoop: once it has spun enough, the thread counts as asleep, reads the
// rings and looks once more before it sleeps. After a ring it spins anew, and no longer counts.
#ifdef BUG_COUNT_AFTER_LOOK
#define BEFORE_LOOK skip
#define AFTER_LOOK skip
#define BEFORE_SLEEP for_news++
#else
#define BEFORE_LOOK for_news++
#define AFTER_LOOK for_news--
#define BEFORE_SLEEP skip
#endif

#define WAIT_UNTIL(thread, condition)                                                              \
    do                                                                                             \
    :: condition -> break                                                                          \
    :: else ->                                                                                     \
       BEFORE_LOOK;                                                                                \
       seen = rings;                                                                               \
       if                                                                                          \
       :: condition -> AFTER_LOOK; break                                                           \
       :: else -> BEFORE_SLEEP; sleep(thread, BY_NEWS | BY_LOCAL); for_news--                      \
       fi                                                                                          \
    od

active proctype Patient() {
    byte seen, expected;
    WAIT_UNTIL(PATIENT, news >= 1);
#ifdef CALLER_WAITS
    ended = true;
#ifdef BUG_END_AS_NEWS
    ring(BY_NEWS)
#else
    ring_behind()
#endif
#else
    WAIT_UNTIL(PATIENT, rounds >= 1);
    WAIT_UNTIL(PATIENT, rounds >= 2)
#endif
}

// A caller that waits while the patient thread drives: WaitLoop::pause(Sleepers::behind). It counts
// before its last look, as others do.
#ifdef CALLER_WAITS
active proctype Caller() {
    byte seen;
    do
    :: ended -> break
    :: else ->
       behind++;
       seen = rings;
       if
       :: ended -> behind--; break
       :: else -> sleep(CALLER, BY_LOCAL); behind--
       fi
    od
}
#endif

active proctype Idle() {
    byte seen;
    SLEEP_IDLE_UNTIL(work);
    WAIT_UNTIL(IDLE, news >= 2)
}

active proctype OtherRank() {
    byte expected;
    news++;
    ring(BY_NEWS);
    news++;
    ring(LAST_RING)
}

#ifndef CALLER_WAITS
active proctype Stager() {
    byte expected;
#ifdef BUG_NEWS_AFTER_NUDGE
    nudge();
    rounds++;
    nudge();
    rounds++
#else
    rounds++;
    nudge();
    rounds++;
    nudge()
#endif
}
#endif

// base::ring() up to Sleepers::idle.
active proctype Local() {
    byte expected;
    work = true;
#ifdef BUG_COUNTS_BEFORE_RING
    expected = behind;
    if
    :: expected == 0 -> expected = idle
    :: else
    fi;
    rings++;
#else
    rings++;
    expected = behind;
    if
    :: expected == 0 -> expected = idle
    :: else
    fi;
#endif
    if
    :: expected != 0 -> futex_wake(BY_NEWS | BY_LOCAL)
    :: else ->
        expected = for_news;
        if
        :: expected != 0 -> futex_wake(BY_NEWS)
        :: else
        fi
    fi
}
