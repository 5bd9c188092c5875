#include "topology/machine.hpp"

#include <bit>
#include <fmt/format.h>
#include <hwloc.h>
#include <memory>
#include <sched.h>
#include <type_traits>

namespace guozhuang::topology {
namespace {

struct Destroy {
    void operator()(hwloc_topology_t topology) const noexcept { hwloc_topology_destroy(topology); }
    void operator()(hwloc_cpuset_t set) const noexcept { hwloc_bitmap_free(set); }
};
using Hwloc = std::unique_ptr<std::remove_pointer_t<hwloc_topology_t>, Destroy>;
using CpuSet = std::unique_ptr<std::remove_pointer_t<hwloc_cpuset_t>, Destroy>;

void mark(CoreMask& mask, unsigned core) noexcept {
    if (core / 64 < mask.size()) mask[core / 64] |= std::uint64_t{1} << (core % 64);
}

/// Loads cores and caches only: looking for devices would take long.
Hwloc load() {
    hwloc_topology_t raw = nullptr;
    if (hwloc_topology_init(&raw) != 0) return nullptr;
    Hwloc topology(raw);
    hwloc_topology_set_all_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_NONE);
    for (const auto type : {HWLOC_OBJ_CORE, HWLOC_OBJ_L2CACHE, HWLOC_OBJ_L3CACHE}) {
        hwloc_topology_set_type_filter(raw, type, HWLOC_TYPE_FILTER_KEEP_ALL);
    }
    return hwloc_topology_load(raw) == 0 ? std::move(topology) : nullptr;
}

CoreMask affinity_by_scheduler() noexcept {
    CoreMask mask{};
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0) CPU_SET(0, &set);
    for (unsigned cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
        if (CPU_ISSET(cpu, &set)) mark(mask, cpu);
    }
    return mask;
}

CoreMask cores_of(hwloc_topology_t topology, hwloc_const_cpuset_t bound) {
    CoreMask mask{};
    for (hwloc_obj_t core = nullptr;
         (core = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, core)) != nullptr;) {
        if (hwloc_bitmap_intersects(core->cpuset, bound) != 0) mark(mask, core->logical_index);
    }
    return mask;
}

int cores_below(hwloc_topology_t topology, hwloc_obj_t object) {
    return std::max(
        1, hwloc_get_nbobjs_inside_cpuset_by_type(topology, object->cpuset, HWLOC_OBJ_CORE));
}

/// Reads the caches between the first core of the mask and memory.
void read_caches(hwloc_topology_t topology, hwloc_const_cpuset_t bound, Machine& machine) {
    hwloc_obj_t object =
        hwloc_get_pu_obj_by_os_index(topology, static_cast<unsigned>(hwloc_bitmap_first(bound)));
    for (; object != nullptr; object = object->parent) {
        if (hwloc_obj_type_is_dcache(object->type) == 0 || object->attr->cache.size == 0) continue;
        const int sharing = cores_below(topology, object);
        const std::size_t bytes = object->attr->cache.size;
        if (object->type == HWLOC_OBJ_L2CACHE)
            machine.l2_bytes = bytes / static_cast<std::size_t>(sharing);
        machine.last_level_bytes = bytes;
        machine.cores_per_last_level = sharing;
    }
}

}  // namespace

int count(const CoreMask& mask) noexcept {
    int cores = 0;
    for (const auto word : mask) cores += std::popcount(word);
    return cores;
}

Machine discover() {
    Machine machine;
    machine.cores = affinity_by_scheduler();
    machine.threads = count(machine.cores);
    machine.host_threads = machine.threads;
    machine.quota = cpu_quota();
    const Hwloc topology = load();
    const CpuSet bound(hwloc_bitmap_alloc());
    if (!topology || !bound) return machine;
    if (hwloc_get_cpubind(topology.get(), bound.get(), HWLOC_CPUBIND_THREAD) != 0) return machine;
    const CoreMask cores = cores_of(topology.get(), bound.get());
    if (count(cores) == 0) return machine;
    machine.cores = cores;
    machine.threads = hwloc_bitmap_weight(bound.get());
    machine.host_threads = hwloc_bitmap_weight(hwloc_topology_get_allowed_cpuset(topology.get()));
    machine.numa_nodes = std::max(1, hwloc_get_nbobjs_by_type(topology.get(), HWLOC_OBJ_NUMANODE));
    read_caches(topology.get(), bound.get(), machine);
    machine.known = true;
    return machine;
}

const Machine& this_machine() {
    static const Machine machine = discover();
    return machine;
}

int usable_cores(const Machine& machine) {
    return cores_within(count(machine.cores), {&machine.quota, 1});
}

std::string describe(const Machine& machine) {
    const int cores = count(machine.cores), usable = usable_cores(machine);
    const auto plural = [](int number) { return number == 1 ? "" : "s"; };
    const auto limit =
        usable == cores ? ""
                        : fmt::format(", limited to {} by the control group's CPU quota", usable);
    if (!machine.known)
        return fmt::format("{} hardware thread{}{}, caches unknown", cores, plural(cores), limit);
    return fmt::format(
        "{} core{}{}, L2 {} KiB each, last-level cache {} MiB shared by {}, {} NUMA node{}", cores,
        plural(cores), limit, machine.l2_bytes >> 10, machine.last_level_bytes >> 20,
        machine.cores_per_last_level, machine.numa_nodes, plural(machine.numa_nodes));
}

std::string binding_warning(const Machine& machine, int wanted) {
    if (wanted <= machine.threads || machine.threads >= machine.host_threads) return {};
    return fmt::format(
        "OMP_NUM_THREADS is {}, but the process is bound to {} of the host's {} hardware threads, "
        "which these threads and the library's "
        "share; "
        "start it with mpirun --bind-to none, or give each rank more cores (mpirun --map-by "
        "slot:PE={})",
        wanted, machine.threads, machine.host_threads, wanted);
}

base::WaitSettings wait_settings(int ranks, int cores) noexcept {
    base::WaitSettings settings;
    // Long enough for an answer in flight, and short for the rank that must send it and needs the
    // core. (4 bytes around 4 ranks on 2 cores: p50 17 to 35 us if every wait sleeps at once,
    // mostly below 1 us with 5 us; longer spins were not measurably better.)
    if (ranks > cores) settings.spin = std::chrono::microseconds(5);
    settings.yields = ranks > cores;
    return settings;
}

}  // namespace guozhuang::topology
