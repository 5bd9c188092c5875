// The doorbell (src/base/wait.cpp) as a model: two threads of a rank wait, a peer rings when it has news, a local thread when it has work.
// The patient thread waits for the first news. The idle one parks until there is work, which rings from others must not disturb, and waits for
// the second news then. Parks have no time limit here, so a wake-up that is lost is a thread that sleeps for ever: an invalid end state. The
// memory is sequentially consistent, as are the operations of the code; the count of rings does not wrap.
//
// A defect for the model to find: -DBUG_LOOK_BEFORE_COUNT, -DBUG_ASLEEP_READ_FIRST, -DBUG_WAKE_ONE, -DBUG_NO_COMPARE.

#define BY_NEWS 1
#define BY_LOCAL 2
#define PATIENT 0
#define IDLE 1

byte rings, asleep;
byte sleeping[2];  // the kernel's: whom each thread lets itself be woken by, 0 if it is awake
byte news;
bool work;

// The kernel compares the word and puts the thread to sleep in one step, and wakes in one step all whose bits match.
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

inline futex_wake(bits) {
    d_step {
        if
        :: (sleeping[IDLE] & bits) != 0 -> sleeping[IDLE] = 0;
#ifndef BUG_WAKE_ONE
            if
            :: (sleeping[PATIENT] & bits) != 0 -> sleeping[PATIENT] = 0
            :: else
            fi
#endif
        :: else ->
            if
            :: (sleeping[PATIENT] & bits) != 0 -> sleeping[PATIENT] = 0
            :: else
            fi
        fi
    }
}

inline ring() {
#ifdef BUG_ASLEEP_READ_FIRST
    expected = asleep;
    rings++;
#else
    rings++;
    expected = asleep;
#endif
    if
    :: expected != 0 -> futex_wake(BY_NEWS)
    :: else
    fi
}

// As Patience::park(): all that pause() and park_idle() do once they no longer spin.
inline park(thread, bits, expects_news) {
    asleep = asleep + expects_news;
    if
    :: rings == seen -> futex_wait(thread, seen, bits)
    :: else
    fi;
    asleep = asleep - expects_news
}

// wait_until(): the count is read before the look.
#ifdef BUG_LOOK_BEFORE_COUNT
#define LOOK_UNTIL(condition, wait) \
    do                              \
    :: condition -> break           \
    :: else -> seen = rings; wait   \
    od
#else
#define LOOK_UNTIL(condition, wait)             \
    do                                          \
    :: seen = rings;                            \
       if                                       \
       :: condition -> break                    \
       :: else -> wait                          \
       fi                                       \
    od
#endif

active proctype Patient() {
    byte seen;
    LOOK_UNTIL(news >= 1, park(PATIENT, BY_NEWS | BY_LOCAL, 1))
}

active proctype Idle() {
    byte seen;
    LOOK_UNTIL(work, park(IDLE, BY_LOCAL, 0));
    LOOK_UNTIL(news >= 2, park(IDLE, BY_NEWS | BY_LOCAL, 1))
}

active proctype Peer() {
    byte expected;
    news++;
    ring();
    news++;
    ring()
}

active proctype Local() {
    work = true;
    rings++;
    futex_wake(BY_NEWS | BY_LOCAL)
}
