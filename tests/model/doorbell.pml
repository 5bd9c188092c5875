// The doorbell (src/base/wait.cpp) as a model: two threads of a rank wait, a peer rings when it has
// news, another nudges when it has ended a round of staging, a local thread rings when it has work.
// The patient thread waits for the first news, then for two rounds one after another. The idle one
// parks until there is work, which rings from others must not disturb, and waits for the second
// news then. With -DCALLER_WAITS there are no rounds, and a caller of the rank waits behind the
// patient thread until that has ended what it drives. Parks have no time limit here, so a wake-up
// that is lost is a thread that sleeps for ever: an invalid end state. The threads are of one
// process set: a ring for another is to them like one that finds nobody asleep, counted and no
// more. The memory is sequentially consistent, as are the operations of the code; the count of
// rings does not wrap.
//
// A defect for the model to find: -DBUG_LOOK_BEFORE_COUNT, -DBUG_WAKE_ONE, -DBUG_NO_COMPARE,
// -DBUG_COUNT_AFTER_LOOK, -DBUG_NEWS_AFTER_NUDGE, -DBUG_OTHER_SET, -DBUG_PARKED_BEFORE_RING; with a
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

byte rings, asleep, behind, parked;
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

inline ring(bits) {
    rings++;
    expected = asleep;
    if
    :: expected != 0 -> futex_wake(bits)
    :: else
    fi
}

// For news that are looked at with the same order of memory as `asleep`: base::nudge().
inline nudge() {
    expected = asleep;
    if
    :: expected != 0 -> ring(BY_NEWS)
    :: else
    fi
}

// For those who wait behind this thread: base::ring_callers().
inline ring_callers() {
    rings++;
    expected = behind;
    if
    :: expected != 0 -> futex_wake(BY_NEWS | BY_LOCAL)
    :: else ->
        expected = asleep;
        if
        :: expected != 0 -> futex_wake(BY_NEWS)
        :: else
        fi
    fi
}

// As WaitLoop::park().
inline park(thread, bits) {
    parked++;
    if
    :: rings == seen -> futex_wait(thread, seen, bits)
    :: else
    fi;
    parked--
}

// A coordinator with nothing pending: WaitLoop::park_idle(). The count is read before the look.
#ifdef BUG_LOOK_BEFORE_COUNT
#define PARK_IDLE_UNTIL(condition)                                                                 \
    do                                                                                             \
    :: condition -> break                                                                          \
    :: else -> seen = rings; park(IDLE, BY_LOCAL)                                                  \
    od
#else
#define PARK_IDLE_UNTIL(condition)                                                                 \
    do                                                                                             \
    :: seen = rings;                                                                               \
       if                                                                                          \
       :: condition -> break                                                                       \
       :: else -> park(IDLE, BY_LOCAL)                                                             \
       fi                                                                                          \
    od
#endif

// wait_until() with a WaitLoop: once it has spun enough, the thread counts as asleep, reads the
// rings and looks once more before it parks. After a ring it spins anew, and no longer counts.
#ifdef BUG_COUNT_AFTER_LOOK
#define BEFORE_LOOK skip
#define AFTER_LOOK skip
#define BEFORE_PARK asleep++
#else
#define BEFORE_LOOK asleep++
#define AFTER_LOOK asleep--
#define BEFORE_PARK skip
#endif

#define WAIT_UNTIL(thread, condition)                                                              \
    do                                                                                             \
    :: condition -> break                                                                          \
    :: else ->                                                                                     \
       BEFORE_LOOK;                                                                                \
       seen = rings;                                                                               \
       if                                                                                          \
       :: condition -> AFTER_LOOK; break                                                           \
       :: else -> BEFORE_PARK; park(thread, BY_NEWS | BY_LOCAL); asleep--                          \
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
    ring_callers()
#endif
#else
    WAIT_UNTIL(PATIENT, rounds >= 1);
    WAIT_UNTIL(PATIENT, rounds >= 2)
#endif
}

// A caller that waits while the patient thread drives: WaitLoop::pause_behind(). It counts before
// its last look, as others do.
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
       :: else -> park(CALLER, BY_LOCAL); behind--
       fi
    od
}
#endif

active proctype Idle() {
    byte seen;
    PARK_IDLE_UNTIL(work);
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

// base::ring_local().
active proctype Local() {
    byte expected;
    work = true;
#ifdef BUG_PARKED_BEFORE_RING
    expected = parked;
    rings++;
#else
    rings++;
    expected = parked;
#endif
    if
    :: expected != 0 -> futex_wake(BY_NEWS | BY_LOCAL)
    :: else
    fi
}
