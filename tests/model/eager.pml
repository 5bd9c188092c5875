// Eager rounds (src/wire/group/eager_rounds.cpp) as a model: N ranks make CALLS calls one after the
// other, each of one of KINDS kinds. For each a rank may offer data in an eager round; where that
// does not go ahead, or it does not offer, it goes the ordinary way, on which it waits for all to
// come that way with the same call, and declines rounds of others meanwhile. A rank may give up a
// round at any moment, since it waits for a while only.
//
// No call may be made eagerly by one rank and the ordinary way by another; a call that goes ahead
// is of one kind on all ranks, and each sees what all have offered for it; and all ranks come to
// the end: a wait for ever is an invalid end state. The memory is sequentially consistent, as are
// the operations of the code.
//
// A defect for the model to find: -DBUG_LOCAL_DECISION, -DBUG_ROUND_FIRST, -DBUG_SLOT_IN_USE,
// -DBUG_KIND_IGNORED.

#ifndef N
#define N 2
#endif
#ifndef KINDS
#define KINDS 2
#endif
#ifndef CALLS
#define CALLS 3
#endif

typedef Offer {
    byte round;  // written last
    byte kind;
    byte data;
}
Offer offers[2 * N];
byte finished[N];
byte opened;
byte decision[2];  // 2r+1: round r goes ahead; 2r: it does not

byte eager[CALLS], ordinary[CALLS];  // how many ranks have made the call this way

// One compare-exchange, and what a rank that fails in it has read.
inline decide(round, wanted) {
#ifdef BUG_LOCAL_DECISION
    ahead = wanted
#else
    d_step {
        if
        :: decision[round % 2] / 2 == round -> ahead = decision[round % 2] % 2
        :: else -> decision[round % 2] = 2 * round + wanted; ahead = wanted
        fi
    }
#endif
}

inline leave(round) {
    finished[me] = round;
    mine = round + 1
}

inline decline() {
    seen = opened;
    if
    :: seen >= mine ->
        decide(seen, 0);
        leave(seen)
    :: else
    fi
}

// Whether it may offer in round `mine`.
inline begin() {
    may_offer = true;
    seen = opened;
    if
    :: seen >= mine ->
        if
        :: decision[seen % 2] / 2 == seen ->
            leave(seen);
            may_offer = false
        :: else -> mine = seen
        fi
    :: else ->
#ifndef BUG_SLOT_IN_USE
        peer = 0;
        do
        :: known + 2 >= mine -> break
        :: known + 2 < mine && peer < N && finished[peer] + 2 >= mine -> peer++
        :: known + 2 < mine && peer < N && finished[peer] + 2 < mine -> may_offer = false; break
        :: known + 2 < mine && peer == N -> break
        od
#endif
        skip
    fi;
    peer = 0
}

inline offer() {
#ifdef BUG_ROUND_FIRST
    offers[2 * me + mine % 2].round = mine;
#endif
    offers[2 * me + mine % 2].kind = kind;
    offers[2 * me + mine % 2].data = call;
#ifndef BUG_ROUND_FIRST
    offers[2 * me + mine % 2].round = mine;
#endif
    d_step {
        if
        :: opened < mine -> opened = mine
        :: else
        fi
    }
    peer = 0;
    do
    :: decision[mine % 2] / 2 == mine ->
        decide(mine, 0);
        break
    :: peer < N && offers[2 * peer + mine % 2].round == mine ->
        if
#ifndef BUG_KIND_IGNORED
        :: offers[2 * peer + mine % 2].kind != kind ->
            decide(mine, 0);
            break
#endif
        :: else -> peer++
        fi
    :: peer == N ->
        decide(mine, 1);
        break
    :: decide(mine, 0);  // it has spun long enough
        break
    od
}

active [N] proctype rank() {
    byte me = _pid, call, kind, mine = 1, seen, peer, known;
    bool ahead, may_offer;

    do
    :: call < CALLS ->
        ahead = false;
        if
        :: kind = 1
#if KINDS > 1
        :: kind = 2
#endif
        fi;
        if
        :: begin();
            if
            :: may_offer ->
                offer();
                if
                :: ahead ->
                    peer = 0;
                    do
                    :: peer < N ->
                        assert(offers[2 * peer + mine % 2].round == mine);
                        assert(offers[2 * peer + mine % 2].kind == kind);
                        assert(offers[2 * peer + mine % 2].data == call);
                        peer++
                    :: else -> break
                    od;
                    known = mine - 1;  // whoever offers has finished what was before
                    eager[call]++;
                    assert(ordinary[call] == 0)
                :: else
                fi;
                leave(mine)
            :: else
            fi
        :: skip  // something else is pending
        fi;
        if
        :: ahead
        :: else ->
            ordinary[call]++;
            assert(eager[call] == 0);
            do
            :: ordinary[call] == N -> break
            :: opened >= mine -> decline()
            od
        fi;
        call++
    :: else -> break
    od
}
