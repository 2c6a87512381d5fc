#include "worker/daemon/safetensors_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/base/json.h"
#include "common/base/utf8.h"
#include "common/io/file.h"

namespace sft::worker {
namespace {

// The format's own limit.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;

}  // namespace

absl::Status CheckSafetensors(const std::string& path) {
  SFT_ASSIGN_OR_RETURN(const int64_t size, io::FileSize(path));
  SFT_ASSIGN_OR_RETURN(const io::UniqueFd fd, io::OpenForRead(path));
  unsigned char length_bytes[8] = {};
  SFT_ASSIGN_OR_RETURN(const size_t got,
                       io::ReadAt(fd.get(), 0, reinterpret_cast<char*>(length_bytes), 8, path));
  if (got < 8) return DataLoss(fmt::format("is truncated: {} bytes", size));
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | length_bytes[i];
  if (length > kMaxHeaderBytes) return DataLoss("is not a safetensors file");
  if (length + 8 > static_cast<uint64_t>(size)) {
    return DataLoss(
        fmt::format("is truncated: {} bytes, the header alone needs {}", size, length + 8));
  }
  std::string header(length, '\0');
  SFT_ASSIGN_OR_RETURN(const size_t read, io::ReadAt(fd.get(), 8, header.data(), length, path));
  const auto json = ParseJson(header.substr(0, read));
  if (!json.is_object()) return DataLoss("is not a safetensors file");
  uint64_t end = 0;
  for (const auto& [name, tensor] : json.items()) {
    if (name == "__metadata__") continue;
    const auto offsets = tensor.is_object() ? tensor.find("data_offsets") : tensor.end();
    if (offsets == tensor.end() || !offsets->is_array() || offsets->size() != 2 ||
        !(*offsets)[1].is_number_unsigned()) {
      return DataLoss("is not a safetensors file");
    }
    end = std::max(end, (*offsets)[1].get<uint64_t>());
    // So that the sum below cannot wrap around.
    if (end > static_cast<uint64_t>(size)) {
      return DataLoss(fmt::format("is truncated: {} bytes, tensor {} ends at {}", size,
                                  ToUtf8(name.substr(0, 80)), end));
    }
  }
  if (length + 8 + end != static_cast<uint64_t>(size)) {
    return DataLoss(fmt::format("is truncated: {} bytes of {}", size, length + 8 + end));
  }
  return absl::OkStatus();
}

}  // namespace sft::worker
