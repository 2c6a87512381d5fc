#include "server/blob/tf_events.h"

#include <array>
#include <bit>
#include <cstring>

namespace sft::server::tf_events {
namespace {

constexpr size_t kHeaderBytes = 12;  // length and its checksum
constexpr size_t kFooterBytes = 4;
constexpr uint32_t kMaskDelta = 0xa282ead8;

constexpr std::array<uint32_t, 256> MakeTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78U : 0U);
    table[i] = crc;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kTable = MakeTable();

template <typename T>
void AppendRaw(std::string& out, T value) {
  static_assert(std::endian::native == std::endian::little);
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

template <typename T>
T LoadRaw(std::string_view bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof(value));
  return value;
}

// Protobuf's wire types.
enum class Wire { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void AppendVarint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}

void AppendTag(std::string& out, int field, Wire wire) {
  AppendVarint(out, static_cast<uint64_t>(field) << 3 | static_cast<uint64_t>(wire));
}

void AppendBytes(std::string& out, int field, std::string_view bytes) {
  AppendTag(out, field, Wire::kBytes);
  AppendVarint(out, bytes.size());
  out += bytes;
}

// Event: wall_time = 1 (double), step = 2 (int64).
std::string EventOf(double time, int64_t step) {
  std::string event;
  AppendTag(event, 1, Wire::kFixed64);
  AppendRaw(event, time);
  if (step == 0) return event;
  AppendTag(event, 2, Wire::kVarint);
  AppendVarint(event, static_cast<uint64_t>(step));
  return event;
}

}  // namespace

uint32_t MaskedCrc32c(std::string_view bytes) {
  uint32_t crc = 0xffffffffU;
  for (const char byte : bytes) {
    crc = kTable[(crc ^ static_cast<unsigned char>(byte)) & 0xff] ^ (crc >> 8);
  }
  return std::rotr(crc ^ 0xffffffffU, 15) + kMaskDelta;
}

std::string Record(std::string_view event) {
  std::string record;
  AppendRaw(record, static_cast<uint64_t>(event.size()));
  AppendRaw(record, MaskedCrc32c(record));
  record += event;
  AppendRaw(record, MaskedCrc32c(event));
  return record;
}

Scan ScanRecords(std::string_view file) {
  Scan scan;
  while (file.size() >= kHeaderBytes) {
    const auto length = LoadRaw<uint64_t>(file);
    if (LoadRaw<uint32_t>(file.substr(8)) != MaskedCrc32c(file.substr(0, 8))) break;
    if (length > file.size() - kHeaderBytes) break;
    const std::string_view rest = file.substr(kHeaderBytes + length);
    if (rest.size() < kFooterBytes) break;
    if (LoadRaw<uint32_t>(rest) != MaskedCrc32c(file.substr(kHeaderBytes, length))) break;
    file = rest.substr(kFooterBytes);
    scan.bytes += static_cast<int64_t>(kHeaderBytes + length + kFooterBytes);
    ++scan.records;
  }
  return scan;
}

std::string FileVersion(double time) {
  std::string event = EventOf(time, 0);
  AppendBytes(event, 3, "brain.Event:2");
  return event;
}

std::string Restart(double time, int64_t step) {
  std::string event = EventOf(time, step);
  // session_log = 7 { status = 1: START = 1 }
  std::string log;
  AppendTag(log, 1, Wire::kVarint);
  AppendVarint(log, 1);
  AppendBytes(event, 7, log);
  return event;
}

std::string Summary(double time, int64_t step, const Scalars& scalars) {
  std::string summary;
  for (const auto& [tag, number] : scalars) {
    // Summary.value = 1 { tag = 1, simple_value = 2 (float) }
    std::string value;
    AppendBytes(value, 1, tag);
    AppendTag(value, 2, Wire::kFixed32);
    AppendRaw(value, number);
    AppendBytes(summary, 1, value);
  }
  std::string event = EventOf(time, step);
  AppendBytes(event, 5, summary);
  return event;
}

}  // namespace sft::server::tf_events
