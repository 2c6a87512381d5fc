#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// The part of TensorBoard's file format that is needed here: TFRecords that each hold one
// serialized tensorflow.Event (tensorflow/core/util/event.proto, lib/io/record_writer.cc).
//
//   record: length as little-endian uint64, masked CRC-32C of those 8 bytes, the bytes, their
//           masked CRC-32C

namespace sft::server::tf_events {

// CRC-32C (Castagnoli) masked as in TFRecords: rotated and offset, so that the checksum of bytes
// that hold checksums is no weaker.
uint32_t MaskedCrc32c(std::string_view bytes);

// Frames one event as a record.
std::string Record(std::string_view event);

// The number of bytes from the start that form whole records, and the number of those records.
struct Scan {
  int64_t bytes = 0;
  int64_t records = 0;
};
Scan ScanRecords(std::string_view file);

// Serialized events. `time` is seconds since the Unix epoch.
std::string FileVersion(double time);  // the first of every file
// Restarts a run at `step`: readers drop their data from that step on.
std::string Restart(double time, int64_t step);
using Scalars = std::vector<std::pair<std::string_view, float>>;
std::string Summary(double time, int64_t step, const Scalars& scalars);

}  // namespace sft::server::tf_events
