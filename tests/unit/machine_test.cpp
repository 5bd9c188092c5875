#include "topology/machine.hpp"

#include <filesystem>
#include <fstream>
#include <pthread.h>
#include <sched.h>

#include "support/runner/catch.hpp"
#include "support/runner/temporary_directory.hpp"

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

/// A root directory with these files.
class FakeRoot {
public:
    FakeRoot& file(const std::string& name, const std::string& text) {
        const std::filesystem::path path = directory_ / name;
        std::filesystem::create_directories(path.parent_path());
        std::ofstream(path) << text << '\n';
        return *this;
    }
    FakeRoot& group(const std::string& lines) { return file("proc/self/cgroup", lines); }
    Quota quota() const { return cpu_quota(directory_ / ""); }

private:
    guozhuang::test::TemporaryDirectory directory_;
};

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
    CHECK(describe(machine).find(std::to_string(count(machine.cores)) +
                                 (machine.known ? " core" : " hardware")) == 0);
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
    for (std::size_t word = 0; word < free.cores.size(); ++word)
        CHECK((bound.cores[word] & ~free.cores[word]) == 0);
}

TEST_CASE("who computes with more threads than it is bound to is told, and nobody else") {
    Machine machine;
    machine.threads = 2;
    machine.host_threads = 8;
    CHECK(binding_warning(machine, 0) == "");  // says nothing of its threads
    CHECK(binding_warning(machine, 2) == "");
    CHECK(binding_warning(machine, 4) ==
          "OMP_NUM_THREADS is 4, but the process is bound to 2 of the host's 8 hardware threads, "
          "which these threads and the library's "
          "share; "
          "start it with mpirun --bind-to none, or give each rank more cores (mpirun --map-by "
          "slot:PE=4)");
    machine.host_threads = 2;  // it is not bound
    CHECK(binding_warning(machine, 4) == "");
}

TEST_CASE("ranks spin for long only if each has a core of its own") {
    CHECK(wait_settings(2, 2).spin == wait_settings(1, 8).spin);
    CHECK(wait_settings(3, 2).spin < wait_settings(2, 2).spin);
}

TEST_CASE("a control group's quota counts, and so do those of the groups around it") {
    const std::string v2 = "sys/fs/cgroup/";
    CHECK(FakeRoot().quota().cores == 0);
    CHECK(FakeRoot().group("0::/").file(v2 + "cpu.max", "max 100000").quota().cores == 0);
    // This is what docker --cpus=2 sets.
    CHECK(FakeRoot().group("0::/").file(v2 + "cpu.max", "200000 100000").quota().cores == 2);
    CHECK(FakeRoot().group("0::/").file(v2 + "cpu.max", "399000 100000").quota().cores == 3);
    // Half a core counts as one.
    CHECK(FakeRoot().group("0::/").file(v2 + "cpu.max", "50000 100000").quota().cores == 1);
    CHECK(FakeRoot().group("0::/").file(v2 + "cpu.max", "garbage").quota().cores == 0);
    CHECK(FakeRoot().group("garbage").file(v2 + "cpu.max", "200000 100000").quota().cores == 0);

    FakeRoot pods;
    pods.group("0::/pods/one/main")
        .file(v2 + "pods/cpu.max", "800000 100000")
        .file(v2 + "pods/one/cpu.max", "300000 100000");
    CHECK(pods.file(v2 + "pods/one/main/cpu.max", "max 100000").quota().cores == 3);
    CHECK(pods.file(v2 + "pods/one/main/cpu.max", "250000 50000").quota().cores == 3);
    CHECK(pods.file(v2 + "pods/cpu.max", "200000 200000").quota().cores == 1);
    // A container's own group is the top of what it sees.
    CHECK(FakeRoot().group("0::/unseen/name").file(v2 + "cpu.max", "400000 100000").quota().cores ==
          4);
}

TEST_CASE("quotas of control groups of version 1, alone and beside version 2") {
    const std::string v1 = "sys/fs/cgroup/cpu/";
    const auto limited = [](FakeRoot& root, const std::string& group,
                            const std::string& quota) -> FakeRoot& {
        return root.file(group + "cpu.cfs_quota_us", quota)
            .file(group + "cpu.cfs_period_us", "100000");
    };
    FakeRoot none, two, joint, both, hybrid;
    CHECK(limited(none.group("3:cpu:/docker/x\n0::/"), v1, "-1").quota().cores == 0);
    CHECK(limited(two.group("7:memory:/m\n3:cpu:/docker/x"), v1 + "docker/x/", "200000")
              .quota()
              .cores == 2);
    CHECK(limited(two, v1, "100000").quota().cores == 1);
    CHECK(limited(joint.group("4:cpu,cpuacct:/"), "sys/fs/cgroup/cpu,cpuacct/", "500000")
              .quota()
              .cores == 5);
    // These controllers are not the one that limits time.
    CHECK(limited(both.group("4:cpuset:/c\n3:cpuacct:/a"), v1 + "c/", "200000").quota().cores == 0);
    CHECK(hybrid.group("0::/x")
              .file("sys/fs/cgroup/unified/x/cpu.max", "600000 100000")
              .quota()
              .cores == 6);
}

TEST_CASE("processes of one control group share its quota") {
    FakeRoot shared, other;
    shared.group("0::/a/b")
        .file("sys/fs/cgroup/a/cpu.max", "200000 100000")
        .file("sys/fs/cgroup/a/b/cpu.max", "200000 100000");
    other.group("0::/").file("sys/fs/cgroup/cpu.max", "300000 100000");
    const auto inside = shared.quota();
    const auto outside = shared.group("0::/a/c").quota();  // beside it, within the same limit
    const auto alone = other.quota();
    CHECK(inside.group == outside.group);
    CHECK(inside.group != alone.group);
    const std::vector<Quota> of_one{inside, outside}, of_two{inside, outside, alone},
        with_free{inside, Quota{}};
    CHECK(cores_within(64, of_one) == 2);
    CHECK(cores_within(64, of_two) == 5);
    CHECK(cores_within(4, of_two) == 4);
    CHECK(cores_within(64, with_free) == 64);
    Machine machine;
    machine.cores = {0xff};
    CHECK(usable_cores(machine) == 8);
    machine.quota = inside;
    CHECK(usable_cores(machine) == 2);
    CHECK(describe(machine) ==
          "8 hardware threads, limited to 2 by the control group's CPU quota, caches unknown");
    // Four ranks in a container of two cores on a large host leave cores to each other.
    CHECK(wait_settings(4, usable_cores(machine)).yields);
}
