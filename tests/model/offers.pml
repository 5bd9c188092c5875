// Rounds that are offered (src/wire/group/shared_memory_group.cpp) as a model: N ranks make CALLS
// calls one after the other, each of one of KINDS kinds. For each a rank may offer a round; where
// that does not go ahead, or it does not offer, it goes the ordinary way: it waits for all to come
// that way with the same call, declines what others offer meanwhile, and then takes a round that
// is agreed on. Every second call is of nothing, and so takes no round that way. A rank may doubt a
// round that it has offered at any moment, since it waits for a while only; and after a round in
// vain it may make the same call anew, RETRIES times, as after a lack of memory.
//
// No call may be made eagerly by one rank and the ordinary way by another; a round is of one call
// on all ranks, of one kind if it is offered, and each sees what all have shown in it; no room is
// written that another may read; and all ranks come to the end: a wait for ever is an invalid end
// state. The memory is sequentially consistent, as are the operations of the code.
//
// A defect for the model to find: -DBUG_NO_DOUBT, -DBUG_ROUND_FIRST, -DBUG_OFFER_AFTER_DOUBT,
// -DBUG_KIND_IGNORED, -DBUG_DOUBT_UNSEEN.

#ifndef N
#define N 2
#endif
#ifndef KINDS
#define KINDS 2
#endif
#ifndef CALLS
#define CALLS 2
#endif
#ifndef RETRIES
#define RETRIES 1
#endif
#define ROOMS 3

typedef Head {
    byte round;  // written last
    byte kind;   // 0: agreed on
    byte call = 255;  // first of no call
}
Head heads[ROOMS * N];
#define HEAD(rank, number) heads[ROOMS * (rank) + (number) % ROOMS]
byte reads[ROOMS * N];  // how many ranks read a room

byte verdict_round, verdict;  // one word in the code
#define doubted 1
#define off 2
#define on 3

byte eager[CALLS], ordinary[CALLS];  // how many ranks have made the call this way

inline publish(of_kind) {
    assert(reads[ROOMS * me + mine % ROOMS] == 0);
#ifdef BUG_ROUND_FIRST
    HEAD(me, mine).round = mine;
#endif
    skip;
    d_step {
        HEAD(me, mine).kind = of_kind;
        HEAD(me, mine).call = call
    }
    d_step {
        HEAD(me, mine).round = mine;
        mine++
    }
}

// Reads what all have shown in the last round that this rank has published.
inline read_all(of_kind) {
    for (peer : 0 .. N - 1) {
        reads[ROOMS * peer + (mine - 1) % ROOMS]++;
        assert(HEAD(peer, mine - 1).round == mine - 1);
        assert(HEAD(peer, mine - 1).kind == of_kind);
        assert(HEAD(peer, mine - 1).call == call)
    }
    skip;
    d_step {
        for (peer : 0 .. N - 1) {
            reads[ROOMS * peer + (mine - 1) % ROOMS]--
        }
    }
}

inline settle(number) {
    skip;
    d_step {
        if
        :: verdict_round < number -> verdict_round = number; verdict = doubted
        :: else
        fi
    }
#ifdef BUG_NO_DOUBT
    verdict = off;
#endif
    if
    :: verdict_round == number && verdict == doubted ->
        all = true;
        for (peer : 0 .. N - 1) {
            if
            :: HEAD(peer, number).round != number -> all = false
            :: HEAD(peer, number).round == number && HEAD(peer, number).kind != HEAD(0, number).kind
                -> all = false
            :: else
            fi
        }
        skip;
        d_step {
            if
            :: verdict_round == number && verdict == doubted -> verdict = (all -> on : off)
            :: else
            fi
        }
    :: else
    fi;
    ahead = !(verdict_round == number && verdict == off)
}

inline leave_out(number) {
    mine = number + 1;
    may_offer = false
}

inline leave_out_doubted() {
    number = verdict_round;
    if
    :: number >= mine -> settle(number); leave_out(number)
    :: else
    fi
}

inline decline() {
    leave_out_doubted();
    peer = 0;
    do
    :: peer < N && HEAD(peer, mine).round == mine && HEAD(peer, mine).kind != 0 ->
        settle(mine);
        leave_out(mine);
        break
    :: peer < N && !(HEAD(peer, mine).round == mine && HEAD(peer, mine).kind != 0) -> peer++
    :: peer == N -> break
    od;
    ahead = false
}

inline offer() {
    publish(kind);
    number = mine - 1;
    peer = 0;
    settled = false;
    do
    :: verdict_round == number -> break
    :: peer < N && HEAD(peer, number).round == number ->
        if
#ifndef BUG_KIND_IGNORED
        :: HEAD(peer, number).kind != kind -> break
#endif
        :: else -> peer++
        fi
    :: peer == N ->
#ifndef BUG_DOUBT_UNSEEN
        settled = verdict_round != number;
#else
        settled = true;
#endif
        break
    :: break  // it has spun long enough
    od;
    if
    :: settled -> ahead = true
    :: else -> settle(number)
    fi;
    if
    :: ahead
    :: else -> leave_out(number)
    fi
}

active [N] proctype rank() {
    byte me = _pid, call, kind, mine = 1, number, peer, retries;
    bool ahead, all, settled, may_offer = true;

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
        :: leave_out_doubted();
            ahead = false;
            if
#ifdef BUG_OFFER_AFTER_DOUBT
            :: true ->
#else
            :: may_offer ->
#endif
                offer();
                if
                :: ahead ->
                    read_all(kind);
                    eager[call]++;
                    assert(ordinary[call] == 0)
                :: else
                fi
            :: else
            fi
        :: skip  // something else is pending
        fi;
        if
        :: ahead
        :: !ahead && retries < RETRIES -> retries++; call--
        :: !ahead ->
            ordinary[call]++;
            assert(eager[call] == 0);
            do
            :: ordinary[call] == N -> break
            :: ordinary[call] < N -> decline()
            od;
            if
            :: call % 2 == 0 ->
                leave_out_doubted();
                publish(0);
                for (peer : 0 .. N - 1) {
                    HEAD(peer, mine - 1).round >= mine - 1
                }
                may_offer = true;
                read_all(0)
            :: else  // there is nothing to show
            fi
        fi;
        call++
    :: else -> break
    od
}
