#include "topology/machine.hpp"

#include <pthread.h>
#include <sched.h>

#include "support/catch.hpp"

using namespace guozhuang::topology;

namespace {

cpu_set_t affinity() {
    cpu_set_t set;
    CPU_ZERO(&set);
    pthread_getaffinity_np(pthread_self(), sizeof set, &set);
    return set;
}

/// The first processor of a set alone.
cpu_set_t first_of(const cpu_set_t& set) {
    int cpu = 0;
    while (!CPU_ISSET(cpu, &set)) ++cpu;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    return one;
}

}  // namespace

TEST_CASE("the machine has cores and caches of believable sizes") {
    const Machine machine = discover();
    const auto processors = affinity();
    CHECK(count(machine.cores) >= 1);
    CHECK(count(machine.cores) <= CPU_COUNT(&processors));
    CHECK(machine.l2_bytes >= 32u << 10);
    CHECK(machine.last_level_bytes >= machine.l2_bytes);
    CHECK(machine.cores_per_last_level >= 1);
    CHECK(machine.numa_nodes >= 1);
    CHECK(describe(machine).find(std::to_string(count(machine.cores)) + (machine.known ? " core" : " hardware")) == 0);
}

TEST_CASE("a thread bound to one processor has one core") {
    const cpu_set_t before = affinity();
    const cpu_set_t one = first_of(before);
    pthread_setaffinity_np(pthread_self(), sizeof one, &one);
    const Machine bound = discover();
    pthread_setaffinity_np(pthread_self(), sizeof before, &before);
    CHECK(count(bound.cores) == 1);
    CHECK(bound.threads == 1);
    const Machine free = discover();
    for (std::size_t word = 0; word < free.cores.size(); ++word) CHECK((bound.cores[word] & ~free.cores[word]) == 0);
}

TEST_CASE("who computes with more threads than it is bound to is told, and nobody else") {
    Machine machine;
    machine.threads = 2;
    machine.host_threads = 8;
    CHECK(binding_warning(machine, 0) == "");  // says nothing of its threads
    CHECK(binding_warning(machine, 2) == "");
    CHECK(binding_warning(machine, 4) ==
          "OMP_NUM_THREADS is 4, but the process is bound to 2 of the host's 8 hardware threads, which these threads and the library's "
          "share; "
          "start it with mpirun --bind-to none, or give each rank more cores (mpirun --map-by slot:PE=4)");
    machine.host_threads = 2;  // it is not bound
    CHECK(binding_warning(machine, 4) == "");
}

TEST_CASE("ranks spin for long only if each has a core of its own") {
    CHECK(wait_settings(2, 2).spin == wait_settings(1, 8).spin);
    CHECK(wait_settings(3, 2).spin < wait_settings(2, 2).spin);
}
