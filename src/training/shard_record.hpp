#pragma once

#include <cstddef>
#include <cstdint>
#include <guozhuang/sharded_optimizer.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "training/shard_bundles.hpp"

namespace guozhuang {

/// The state of some elements of one parameter.
struct ShardRecord {
    std::uint64_t step = 0;
    std::string_view parameter;
    DType dtype = DType::f32;
    std::uint64_t elements = 0;  ///< of the whole parameter
    std::uint64_t first = 0, count = 0;
    std::vector<std::span<const std::byte>> state;  ///< the bytes of each moment
};

/// The state of this rank's elements of a bundle. Refers to the bundle and the parameters.
std::vector<ShardRecord> records_of(const ShardBundle& bundle,
                                    const std::vector<Parameter>& parameters, std::uint64_t step);

/// The bytes that ShardedOptimizer::save() returns.
std::string write_shard(std::span<const ShardRecord> records);

/// Refers to the bytes. Throws Error(invalid_argument) if they are damaged.
std::vector<ShardRecord> read_shard(std::string_view bytes);

/// The state of this rank's elements of a bundle. Throws Error(invalid_argument), with the
/// parameter's name, if the records do not have all of it.
std::vector<std::byte> restored_state(std::span<const ShardRecord> records,
                                      const ShardBundle& bundle,
                                      const std::vector<Parameter>& parameters,
                                      const std::string& optimizer);

}  // namespace guozhuang
