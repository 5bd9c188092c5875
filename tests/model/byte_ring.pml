// Messages through shared memory (src/wire/shm/byte_ring.hpp, host_messages.cpp) as a model: a ring
// of two cells, through which a rank that has nothing else to do, and so sleeps by local news only,
// sends more than there is room for to a rank that waits. Cells are put and taken in portions of
// any size; what a cell holds is its number, so the reader can tell. No wake-up may be lost (an
// invalid end state: sleeps have no time limit here), no cell be read before it is written or after
// it is overwritten.
//
// -DCRASHES: either side may die between any two steps. The other then has read some of the cells,
// in order, and ends once the monitor has noticed.
//
// A defect for the model to find: -DBUG_LOOK_BEFORE_FLAG, -DBUG_NO_SECOND_LOOK,
// -DBUG_PUBLISH_FIRST, -DBUG_RELEASE_FIRST, -DBUG_WAKE_BY_NEWS.

#define CELLS 2
#define TOTAL 4
#define BY_NEWS 1
#define BY_LOCAL 2
#define WRITER 0
#define READER 1

byte cells[CELLS];
byte written, released;
bool writer_waits;

byte rings[2], asleep[2];
byte sleeping[2];  // the kernel's: whom each lets itself be woken by, 0 if it is awake
bool dead[2], aborted;
bool ended[2];

inline futex_wait(rank, expected, bits) {
    d_step {
        if
        :: rings[rank] == expected -> sleeping[rank] = bits
        :: else
        fi
    }
    sleeping[rank] == 0
}

inline futex_wake(rank, bits) {
    d_step {
        if
        :: (sleeping[rank] & bits) != 0 -> sleeping[rank] = 0
        :: else
        fi
    }
}

inline ring(rank) {
    rings[rank]++;
    futex_wake(rank, BY_NEWS | BY_LOCAL)
}

inline nudge(rank) {
    if
    :: asleep[rank] != 0 -> rings[rank]++; futex_wake(rank, BY_NEWS)
    :: else
    fi
}

#define ROOM (CELLS - (put - known))

// RingWriter::has_room, and an idle coordinator's attention to its backlog.
proctype Writer() {
    byte put, known, seen, before;
    {
        do
        :: put == TOTAL -> break
        :: else ->
            seen = rings[WRITER];
            if
            :: ROOM == 0 -> known = released
            :: else
            fi;
            if
            :: ROOM == 0 ->
#ifdef BUG_LOOK_BEFORE_FLAG
                known = released;
                writer_waits = true
#else
                writer_waits = true;
#ifndef BUG_NO_SECOND_LOOK
                known = released
#endif
#endif
            :: else
            fi;
            if
            :: ROOM == 0 -> futex_wait(WRITER, seen, BY_LOCAL)
            :: else ->
                before = put;
                do
                :: put < TOTAL && ROOM > 0 ->
#ifdef BUG_PUBLISH_FIRST
                    written = put + 1;
#endif
                    cells[put % CELLS] = put;
                    put++
                :: put != before -> break
                od;
                written = put;
                nudge(READER)
            fi
        od;
        ended[WRITER] = true
    } unless { dead[WRITER] || aborted }
}

// RingReader, and a wait with a WaitLoop.
proctype Reader() {
    byte taken, known, seen, before;
    {
        do
        :: taken == TOTAL -> break
        :: else ->
            known = written;
            if
            :: known == taken ->
                asleep[READER]++;
                seen = rings[READER];
                known = written;
                if
                :: known == taken -> futex_wait(READER, seen, BY_NEWS | BY_LOCAL)
                :: else
                fi;
                asleep[READER]--
            :: else
            fi;
            if
            :: known != taken ->
                before = taken;
                do
                :: taken < known ->
#ifdef BUG_RELEASE_FIRST
                    released = taken + 1;
#endif
                    assert(cells[taken % CELLS] == taken);
                    taken++
                :: taken != before -> break
                od;
                released = taken;
                if
                :: writer_waits ->
                    writer_waits = false;
#ifdef BUG_WAKE_BY_NEWS
                    nudge(WRITER)
#else
                    ring(WRITER)
#endif
                :: else
                fi
            :: else
            fi
        od;
        ended[READER] = true
    } unless { dead[READER] || aborted }
}

#ifdef CRASHES
// Somebody dies, or nobody; the monitor of the other notices at some time.
active proctype Fate() {
    if
    :: !ended[WRITER] -> dead[WRITER] = true
    :: !ended[READER] -> dead[READER] = true
    :: ended[WRITER] && ended[READER]
    fi;
    if
    :: dead[WRITER] || dead[READER] ->
        aborted = true;
        sleeping[WRITER] = 0;
        sleeping[READER] = 0
    :: else
    fi
}
#endif

init {
    atomic {
        run Writer();
        run Reader()
    }
}
