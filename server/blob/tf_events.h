#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// The file format that TensorBoard reads, as far as it is needed here: TFRecords that each hold one
// serialized tensorflow.Event (tensorflow/core/util/event.proto, lib/io/record_writer.cc).
//
//   record: length as little-endian uint64, masked CRC-32C of those 8 bytes, the bytes, their
//           masked CRC-32C

namespace sft::server::tf_events {

// CRC-32C (Castagnoli), as TFRecords mask it: rotated and shifted, so that a checksum of bytes
// that hold checksums is no weaker.
uint32_t MaskedCrc32c(std::string_view bytes);

// One record.
std::string Record(std::string_view event);

// How many bytes from the start are whole records, and how many of those there are.
struct Scan {
  int64_t bytes = 0;
  int64_t records = 0;
};
Scan ScanRecords(std::string_view file);

// Events, serialized. `time` is seconds since the Unix epoch.
std::string FileVersion(double time);  // the first of every file
// Begins a run again at `step`: readers drop what they have from that step on.
std::string Restart(double time, int64_t step);
using Scalars = std::vector<std::pair<std::string_view, float>>;
std::string Summary(double time, int64_t step, const Scalars& scalars);

}  // namespace sft::server::tf_events
