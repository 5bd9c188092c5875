// The negotiation (src/protocol/negotiator.cpp) as a model: N ranks in a star or a chain below rank
// 0, TENSORS names, each submitted up to ROUNDS times in any order, with one of two descriptions;
// any rank that is willing to may shut down at any time, with requests pending or not; any rank may
// join up to JOINS times, and then takes part without submitting anything until all have joined;
// and if QUITS is defined, ranks that are not willing to shut down may quit at once, which ends
// the log. If CRASHES is defined, any rank may die at any time; the others notice, each at some
// later time, and do nothing more in that epoch. If a leaf of the tree has died, a second epoch
// begins among the survivors once all have noticed, with the first one's messages still on the
// links. Links are FIFO; every message goes by itself, so there are more interleavings than with
// messages that are coalesced. Ids stand for their descriptions here; how they are given, used in
// flight and forgotten is what the random walks test.
//
// Asserted: P1 nothing gets stuck, P2 what is executed has been submitted by all, alike, and
// exactly once per round, P3 one log, P4 nothing is left pending after the shutdown, and nothing
// follows it, P5 whatever all have submitted, joined or shut down from is over in the end, P6 what
// an epoch has left on the links changes nothing in the next.
//
// -DN= -DTENSORS=(1 or 2) -DROUNDS= -DVARIANTS=(1 or 2) -DJOINS= [-DQUITS] [-DCRASHES] [-DCHAIN].
// A defect for the model to find: -DBUG_SHUTDOWN_FIRST, -DBUG_SETTLE_EARLY, -DBUG_ABSENT_IGNORED,
// -DBUG_SHUTDOWN_EARLY, -DBUG_JOIN_FIRST, -DBUG_JOIN_EARLY, -DBUG_JOIN_KEPT, -DBUG_QUIT_GOES_ON,
// -DBUG_NEIGHBOURS_NOTICE, -DBUG_EPOCH_IGNORED.

#ifndef N
#define N 2
#endif
#ifndef TENSORS
#define TENSORS 2
#endif
#ifndef ROUNDS
#define ROUNDS 1
#endif
#ifndef VARIANTS
#define VARIANTS 2
#endif
#ifndef JOINS
#define JOINS 0
#endif

#define EVERYBODY ((1 << N) - 1)
#ifdef CRASHES
#define EPOCHS 2
#define ALL epoch_ranks
#else
#define EPOCHS 1
#define ALL EVERYBODY
#endif
#ifdef CHAIN
#define PARENT(r) (r - 1)
#define IS_LEAF(r) (r == N - 1)
#define SUBTREE(r) (ALL & ~((1 << r) - 1))
#else
#define PARENT(r) 0
#define IS_LEAF(r) (r != 0)
#define SUBTREE(r) (r == 0 -> ALL : 1 << r)
#endif
#define AT(r, t) ((r) * TENSORS + (t))

// Entries of the log: the kind, plus the rank, or the tensor and the ranks that contribute
// neutrally.
#define EXECUTE 16
#define MISMATCH 32
#define ABANDONED 48
#define ALL_SHUT_DOWN 64
#define JOINED 80
#define QUIT 96
#define KIND(entry) ((entry) & 240)
#define TENSOR(entry) ((entry) & 1)
#define NEUTRAL(entry) (((entry) & 15) >> 1)

mtype = { report, shutting_down, joining, quitting };
// To the parent: the epoch, the tensor, who submitted variant 1, who 2; or the epoch and the rank.
// From the parent: the epoch, an entry.
chan up[N] = [EPOCHS * (TENSORS * ROUNDS + N + N * JOINS + 1)] of { mtype, byte, byte, byte, byte };
chan down[N] = [EPOCHS * (TENSORS * ROUNDS + JOINS + 2)] of { byte, byte };

// The ranks' own state.
byte tally[N * TENSORS * 2];  // who of the subtree has submitted which variant
byte gone[N];                  // who of the subtree has shut down
byte joined[N];                // who of the subtree has joined
bool ready[TENSORS];           // at the root
byte without[TENSORS];         // at the root: who contributes neutrally to what is ready
bool finished[N];

// State for the assertions, which no rank knows.
byte log[TENSORS * ROUNDS + JOINS + 2];
byte length;
byte position[N];             // entries that the rank has applied
byte over[TENSORS];           // rounds that the log has resolved
byte seen[N * TENSORS];       // rounds that the rank has seen resolved
byte voted[N * TENSORS];      // the round (from 1) of the rank's last submission
byte variant[N * TENSORS];    // and its variant, from 1
byte willing;                 // to shut down
byte have_shut_down;
byte waiting;                 // ranks that have joined and have not seen that all have
byte joins[N];                // of each rank
byte joins_over;              // that the log has resolved
bool someone_quit;
#ifdef CRASHES
byte epoch = 1;
byte epoch_ranks = EVERYBODY;     // of the epoch
byte dead;
byte noticed;                 // who knows that somebody is dead
#define LIVES(r) (((dead | noticed) & (1 << (r))) == 0)
#else
#define epoch 1
#define LIVES(r) true
#endif

#define PENDING(r, t) (voted[AT(r, t)] == seen[AT(r, t)] + 1)
#define VOTED(r, t) (voted[AT(r, t)] == over[t] + 1)
#define TALLY(r, t, v) tally[AT(r, t) * 2 + (v) - 1]

#define HAS_JOINED(r) (joins[r] > joins_over)

hidden byte i, j, missing, votes, neutral;

inline apply(n, entry) {
    assert(position[n] < length && log[position[n]] == entry);
    position[n]++;
    if
    :: KIND(entry) == ALL_SHUT_DOWN || KIND(entry) == QUIT -> finished[n] = true
    :: KIND(entry) == JOINED ->
#ifndef BUG_JOIN_KEPT
        joined[n] = 0;
#endif
        waiting = waiting & ~(1 << n)
    :: KIND(entry) < ALL_SHUT_DOWN ->
        assert(KIND(entry) != EXECUTE ||
               PENDING(n, TENSOR(entry)) == ((NEUTRAL(entry) & (1 << n)) == 0));
        assert((NEUTRAL(entry) & (1 << n) & ~waiting) == 0);
        seen[AT(n, TENSOR(entry))]++
    :: else
    fi
}

inline pass_on(n, entry) {
    for (i : 1 .. N - 1) {
        if
        :: PARENT(i) == n && (ALL & (1 << i)) != 0 -> assert(nfull(down[i])); down[i]!epoch, entry
        :: else
        fi
    }
}

inline append(entry) {
    assert(!finished[0]);
    log[length] = entry;
    length++;
    pass_on(0, entry);
    apply(0, entry)
}

// P2, at the moment the root decides: an execution, a mismatch, or a failure, because some of
// `absent` have shut down without submitting it; the others have joined.
inline judge(t, kind, absent) {
    missing = 0;
    votes = 0;
    neutral = 0;
    for (i : 0 .. N - 1) {
        if
        :: VOTED(i, t) -> votes = votes | (1 << variant[AT(i, t)])
        :: else -> missing = missing | (1 << i); neutral = neutral | (HAS_JOINED(i) << i)
        fi
    }
    missing = missing & ALL;
    assert(missing == (absent) && (missing & ~(have_shut_down | neutral)) == 0);
    assert((missing != neutral) == (kind == ABANDONED));
    assert(kind == ABANDONED || (votes == 6) == (kind == MISMATCH));
    over[t]++
}

inline resolve(t, first, second) {
    if
    :: (ALL & ~(first | second | joined[0])) != 0 ->
        judge(t, ABANDONED, ALL & ~(first | second));
        append(ABANDONED + t)
    :: else ->
        if
        :: first != 0 && second != 0 ->
            judge(t, MISMATCH, ALL & ~(first | second));
            append(MISMATCH + t)
        :: else -> ready[t] = true; without[t] = ALL & ~(first | second)
        fi
    fi
}

#ifdef BUG_ABSENT_IGNORED
#define COMPLETE(n, t) ((TALLY(n, t, 1) | TALLY(n, t, 2) | joined[n]) == SUBTREE(n))
#else
#define COMPLETE(n, t) ((TALLY(n, t, 1) | TALLY(n, t, 2) | gone[n] | joined[n]) == SUBTREE(n))
#endif

inline pass_on_if_complete(n, t) {
    if
    :: (TALLY(n, t, 1) | TALLY(n, t, 2)) != 0 && COMPLETE(n, t) ->
        if
        :: n == 0 -> resolve(t, TALLY(0, t, 1), TALLY(0, t, 2))
        :: else -> assert(nfull(up[n])); up[n]!report(epoch, t, TALLY(n, t, 1), TALLY(n, t, 2))
        fi;
        TALLY(n, t, 1) = 0;
        TALLY(n, t, 2) = 0
    :: else
    fi
}

inline pass_shutdown_on(n, r) {
    if
    :: n != 0 -> assert(nfull(up[n])); up[n]!shutting_down(epoch, r, 0, 0)
    :: else
    fi
}

// Said behind the reports that it completes.
inline shut_down(n, r) {
    gone[n] = gone[n] | (1 << r);
#ifdef BUG_SHUTDOWN_FIRST
    pass_shutdown_on(n, r);
#endif
    for (j : 0 .. TENSORS - 1) {
        pass_on_if_complete(n, j)
    }
#ifndef BUG_SHUTDOWN_FIRST
    pass_shutdown_on(n, r);
#endif
    skip
}

inline pass_join_on(n, r) {
    if
    :: n != 0 -> assert(nfull(up[n])); up[n]!joining(epoch, r, 0, 0)
    :: else
    fi
}

// Said behind the reports that it completes.
inline join(n, r) {
    joined[n] = joined[n] | (1 << r);
#ifdef BUG_JOIN_FIRST
    pass_join_on(n, r);
#endif
    for (j : 0 .. TENSORS - 1) {
        pass_on_if_complete(n, j)
    }
#ifndef BUG_JOIN_FIRST
    pass_join_on(n, r);
#endif
    skip
}

inline quit(n, r) {
    if
    :: n == 0 ->
        if
        :: !finished[0] -> append(QUIT + r)
        :: else
        fi
    :: else -> assert(nfull(up[n])); up[n]!quitting(epoch, r, 0, 0)
    fi
}

inline count(n, t, first, second) {
    TALLY(n, t, 1) = TALLY(n, t, 1) | first;
#ifdef BUG_SETTLE_EARLY
    pass_on_if_complete(n, t);
#endif
    TALLY(n, t, 2) = TALLY(n, t, 2) | second;
    pass_on_if_complete(n, t)
}

#ifdef BUG_SHUTDOWN_EARLY
#define ENOUGH_GONE (gone[0] != 0)
#else
#define ENOUGH_GONE (gone[0] == ALL)
#endif

#ifdef BUG_JOIN_EARLY
#define ALL_JOINED (joined[0] != 0 && (joined[0] | gone[0] | 1) == ALL)
#else
#define ALL_JOINED (joined[0] != 0 && (joined[0] | gone[0]) == ALL)
#endif

// Messages after the log's last entry have no effect.
#ifdef BUG_QUIT_GOES_ON
#define GOES_ON(n) true
#else
#define GOES_ON(n) (finished[n] == 0)
#endif

#if TENSORS > 1
#define NOTHING_READY (!ready[0] && !ready[1])
#else
#define NOTHING_READY !ready[0]
#endif

#ifdef BUG_EPOCH_IGNORED
#define CURRENT(n) true
#else
#define CURRENT(n) (n == epoch)
#endif

// The steps of a rank, for the tensors, variants and children there are.
#define SUBMIT(t, v)                                                                               \
    :: d_step {                                                                                    \
        LIVES(rank) && ((have_shut_down | waiting) & (1 << rank)) == 0 && !finished[rank] &&       \
        seen[AT(rank, t)] < ROUNDS && !PENDING(rank, t) ->                                         \
            voted[AT(rank, t)] = seen[AT(rank, t)] + 1;                                            \
            variant[AT(rank, t)] = v;                                                              \
            count(rank, t, (v == 1 -> 1 << rank : 0), (v == 2 -> 1 << rank : 0))                   \
    }
#define APPEND(t)                                                                                  \
    :: d_step {                                                                                    \
        LIVES(rank) && rank == 0 && GOES_ON(0) && ready[t] ->                                      \
            ready[t] = false;                                                                      \
            judge(t, EXECUTE, without[t]);                                                         \
            append(EXECUTE + t + (without[t] << 1))                                                \
    }
#define RECEIVE(c)                                                                                 \
    :: d_step {                                                                                    \
        LIVES(rank) && PARENT(c) == rank && nempty(up[c]) ->                                       \
            up[c]?kind, sent_in, what, first, second;                                              \
            if                                                                                     \
            :: GOES_ON(rank) && CURRENT(sent_in) && kind == report ->                              \
                count(rank, what, first, second)                                                   \
            :: GOES_ON(rank) && CURRENT(sent_in) && kind == joining -> join(rank, what)            \
            :: GOES_ON(rank) && CURRENT(sent_in) && kind == quitting -> quit(rank, what)           \
            :: GOES_ON(rank) && CURRENT(sent_in) && kind == shutting_down -> shut_down(rank, what) \
            :: else                                                                                \
            fi                                                                                     \
    }

hidden mtype kind;
hidden byte sent_in, what, first, second;

#ifdef BUG_NEIGHBOURS_NOTICE
#define NOTICES(n) (dead == 2 << (n) || dead << 1 == 1 << (n))  // in a chain
#else
#define NOTICES(n) (dead != 0)
#endif

#ifdef CRASHES
// All survivors know, and begin anew.
inline begin_epoch() {
    epoch = 2;
    epoch_ranks = EVERYBODY & ~dead;
    noticed = 0;
    for (i : 0 .. N - 1) {
        gone[i] = 0;
        joined[i] = 0;
        finished[i] = false;
        position[i] = 0;
        joins[i] = 0;
        for (j : 0 .. TENSORS - 1) {
            TALLY(i, j, 1) = 0;
            TALLY(i, j, 2) = 0;
            seen[AT(i, j)] = 0;
            voted[AT(i, j)] = 0;
            variant[AT(i, j)] = 0
        }
    }
    for (j : 0 .. TENSORS - 1) {
        ready[j] = false;
        without[j] = 0;
        over[j] = 0
    }
    for (j : 0 .. length) {
        log[j] = 0
    }
    length = 0;
    have_shut_down = 0;
    waiting = 0;
    joins_over = 0;
    someone_quit = false
}
#endif

proctype Rank(byte rank) {
end:
    do
    SUBMIT(0, 1)
#if VARIANTS > 1
    SUBMIT(0, 2)
#endif
    APPEND(0)
#if TENSORS > 1
    SUBMIT(1, 1)
#if VARIANTS > 1
    SUBMIT(1, 2)
#endif
    APPEND(1)
#endif
    RECEIVE(1)
#if N > 2
    RECEIVE(2)
#endif
    :: d_step {
        LIVES(rank) && nempty(down[rank]) ->
            down[rank]?sent_in, what;
            if
            :: CURRENT(sent_in) -> pass_on(rank, what); apply(rank, what)
            :: else
            fi
    }
    :: d_step {
        LIVES(rank) && (willing & ~have_shut_down & (1 << rank)) != 0 && !finished[rank] ->
            have_shut_down = have_shut_down | (1 << rank);
            shut_down(rank, rank)
    }
#if JOINS > 0
    :: d_step {
        LIVES(rank) && joins[rank] < JOINS && ((have_shut_down | waiting) & (1 << rank)) == 0 &&
        !finished[rank] ->
            joins[rank]++;
            waiting = waiting | (1 << rank);
            join(rank, rank)
    }
    :: d_step {
        LIVES(rank) && rank == 0 && !finished[0] && ALL_JOINED && NOTHING_READY ->
            joins_over++;
            append(JOINED)
    }
#endif
#ifdef QUITS
    :: d_step {
        LIVES(rank) && (willing & (1 << rank)) == 0 && !someone_quit && !finished[rank] ->
            someone_quit = true;
            quit(rank, rank)
    }
#endif
#ifdef CRASHES
    :: d_step { dead == 0 -> dead = 1 << rank }
    :: d_step { epoch == 1 && LIVES(rank) && NOTICES(rank) -> noticed = noticed | (1 << rank) }
    :: d_step {
        epoch == 1 && (dead & (1 << rank)) != 0 && IS_LEAF(rank) && (noticed | dead) == EVERYBODY ->
            begin_epoch()
    }
#endif
    :: d_step {
        LIVES(rank) && rank == 0 && !finished[0] && ENOUGH_GONE && NOTHING_READY && !ALL_JOINED ->
            append(ALL_SHUT_DOWN)
    }
    od
}

// Nobody has anything to do any more.
proctype Observer() {
    timeout ->
    d_step {
#ifdef CRASHES
        assert(dead == 0 || epoch == 2 || (noticed | dead) == EVERYBODY);
#endif
        for (i : 0 .. N - 1) {
            assert(!LIVES(i) || position[i] == length);
            assert(!LIVES(i) || finished[i] == (have_shut_down == ALL || someone_quit))
        }
        if
        :: !LIVES(0)
        :: LIVES(0) && someone_quit ->
            assert(KIND(log[length - 1]) == QUIT || KIND(log[length - 1]) == ALL_SHUT_DOWN)
        :: LIVES(0) && !someone_quit ->
            for (j : 0 .. TENSORS - 1) {
                votes = 0;
                missing = 0;
                neutral = 0;
                for (i : 0 .. N - 1) {
                    neutral = neutral | (HAS_JOINED(i) << i);
                    if
                    :: VOTED(i, j) -> votes = votes | (1 << i)
                    :: else -> missing = missing | (1 << i)
                    fi;
                    assert(have_shut_down != ALL || !LIVES(i) ||
                           (!PENDING(i, j) && TALLY(i, j, 1) == 0 && TALLY(i, j, 2) == 0))
                }
                assert(votes == 0 || (missing & ALL & ~(have_shut_down | neutral)) != 0);
                assert(!ready[j]);
                assert(neutral == 0 || (ALL & ~(have_shut_down | neutral)) != 0)
            }
        fi
    }
}

init {
    select(willing : 0 .. ALL);
    atomic {
        for (i : 0 .. N - 1) {
            run Rank(i)
        }
        run Observer()
    }
}
