#include "worker/engine/checkpoint/safetensors.h"

#include <ATen/ATen.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "common/base/json.h"
#include "common/io/file.h"
#include "worker/engine/base/error.h"

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

namespace sft::engine {
namespace {

using nlohmann::json;

// The format's own limit.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr uint64_t kLengthBytes = 8;

struct DtypeName {
  std::string_view name;
  at::ScalarType type;
};
constexpr DtypeName kDtypes[] = {
    {"F64", at::kDouble},
    {"F32", at::kFloat},
    {"F16", at::kHalf},
    {"BF16", at::kBFloat16},
    {"F8_E4M3", at::kFloat8_e4m3fn},
    {"F8_E5M2", at::kFloat8_e5m2},
    {"F8_E8M0", at::kFloat8_e8m0fnu},
    {"I64", at::kLong},
    {"I32", at::kInt},
    {"I16", at::kShort},
    {"I8", at::kChar},
    {"U8", at::kByte},
    {"BOOL", at::kBool},
};

[[noreturn]] void Broken(const std::filesystem::path& path, const std::string& what,
                         const char* code = "broken_safetensors") {
  throw UserError(
      fmt::format("{}: {}", path.string(), what), code,
      "The file is damaged or was not copied completely: fetch it again and compare its "
      "size and hash with the original.");
}

// [a, b, ...] of integers that are not negative; false for anything else.
bool ReadIntegers(const json& value, std::vector<int64_t>& out) {
  if (!value.is_array()) return false;
  for (const json& item : value) {
    if (!item.is_number_unsigned() || item.get<uint64_t>() > uint64_t{1} << 62) return false;
    out.push_back(item.get<int64_t>());
  }
  return true;
}

// Bytes of a tensor; nothing when the product overflows.
bool TensorBytes(const TensorInfo& info, uint64_t& bytes) {
  bytes = c10::elementSize(info.dtype);
  for (const int64_t size : info.shape) {
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(size), &bytes)) return false;
  }
  return bytes <= uint64_t{1} << 62;
}

TensorInfo ParseEntry(const std::filesystem::path& path, const std::string& name,
                      const json& entry) {
  TensorInfo info{.name = name};
  std::vector<int64_t> offsets;
  if (!entry.is_object() || !entry.contains("dtype") || !entry["dtype"].is_string() ||
      !entry.contains("shape") || !ReadIntegers(entry["shape"], info.shape) ||
      !entry.contains("data_offsets") || !ReadIntegers(entry["data_offsets"], offsets) ||
      offsets.size() != 2) {
    Broken(path, fmt::format("the header's entry of \"{}\" lacks a valid dtype, shape or "
                             "data_offsets",
                             name));
  }
  const auto& dtype = entry["dtype"].get_ref<const std::string&>();
  const auto found =
      std::find_if(std::begin(kDtypes), std::end(kDtypes),
                   [&](const DtypeName& candidate) { return candidate.name == dtype; });
  if (found == std::end(kDtypes)) {
    throw UserError(fmt::format("{}: tensor \"{}\" has the type {}, which is not supported",
                                path.string(), name, dtype),
                    "unsupported_dtype",
                    "Convert the weights to BF16, F16 or F32 (save_pretrained of transformers with "
                    "torch_dtype) and give that directory.");
  }
  info.dtype = found->type;
  info.begin = static_cast<uint64_t>(offsets[0]);
  info.end = static_cast<uint64_t>(offsets[1]);
  uint64_t bytes = 0;
  if (info.end < info.begin || !TensorBytes(info, bytes) || bytes != info.bytes()) {
    Broken(path,
           fmt::format("tensor \"{}\" of type {} and shape [{}] does not fill its bytes {} to "
                       "{}",
                       name, dtype, fmt::join(info.shape, ", "), info.begin, info.end));
  }
  return info;
}

// Parses and refuses a key given twice, of which the parser would silently keep the last.
json ParseHeaderText(const std::filesystem::path& path, std::string_view text) {
  JsonProblem problem;
  json header = ParseJson(text, {.keys_once = true}, &problem);
  if (header.is_discarded() && problem.kind == JsonProblem::kTwice) {
    Broken(path, fmt::format("in the header {}", problem.text));
  }
  if (!header.is_object()) Broken(path, "the header is not a JSON object");
  return header;
}

}  // namespace

int64_t TensorInfo::numel() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

std::string_view SafetensorsDtype(at::ScalarType dtype) {
  for (const DtypeName& candidate : kDtypes) {
    if (candidate.type == dtype) return candidate.name;
  }
  throw InternalError(
      fmt::format("safetensors files do not hold tensors of type {}", c10::toString(dtype)));
}

std::shared_ptr<const SafetensorsFile> SafetensorsFile::Open(const std::filesystem::path& path) {
  const int raw = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (raw < 0) {
    const int error = errno;
    throw UserError(fmt::format("cannot read {}: {}", path.string(), strerror(error)),
                    "file_not_readable",
                    error == ENOENT ? "A file of the model is missing: fetch the model again."
                                    : "Check the owner and the mode of the file.");
  }
  io::UniqueFd fd(raw);
  struct stat status {};
  if (fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    Broken(path, "this is not a regular file");
  }
  const auto size = static_cast<uint64_t>(status.st_size);
  if (size < kLengthBytes) {
    Broken(path, fmt::format("the file has {} bytes: too short for a safetensors file", size));
  }
  void* map = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (map == MAP_FAILED) {
    throw InfrastructureError(
        fmt::format("cannot map {} ({} bytes): {}", path.string(), size, strerror(errno)));
  }
  auto file = std::make_shared<SafetensorsFile>(Passkey(), path, std::move(fd),
                                                static_cast<const std::byte*>(map), size);
  file->ParseHeader();
  return file;
}

SafetensorsFile::SafetensorsFile(Passkey, std::filesystem::path path, io::UniqueFd fd,
                                 const std::byte* map, uint64_t size)
    : path_(std::move(path)), fd_(std::move(fd)), map_(map), size_(size) {}

SafetensorsFile::~SafetensorsFile() { munmap(const_cast<std::byte*>(map_), size_); }

void SafetensorsFile::ParseHeader() {
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, map_, kLengthBytes);
  if (header_bytes > kMaxHeaderBytes) {
    Broken(path_,
           fmt::format("the file says that its header has {} bytes, more than the {} allowed: "
                       "this is not a safetensors file",
                       header_bytes, kMaxHeaderBytes));
  }
  if (header_bytes > size_ - kLengthBytes) {
    Broken(path_,
           fmt::format("the file has {} bytes and its header alone {}", size_, header_bytes));
  }
  data_begin_ = kLengthBytes + header_bytes;
  const json header = ParseHeaderText(path_, {reinterpret_cast<const char*>(map_) + kLengthBytes,
                                              static_cast<size_t>(header_bytes)});
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") {
      if (!entry.is_object()) Broken(path_, "__metadata__ is not an object");
      for (const auto& [key, value] : entry.items()) {
        if (!value.is_string()) Broken(path_, "a value of __metadata__ is not a string");
        metadata_.emplace(key, value.get<std::string>());
      }
      continue;
    }
    tensors_.emplace(name, ParseEntry(path_, name, entry));
  }
  CheckLayout(size_ - data_begin_);
}

void SafetensorsFile::CheckLayout(uint64_t data_bytes) const {
  std::vector<const TensorInfo*> order;
  for (const auto& [name, info] : tensors_) order.push_back(&info);
  std::sort(order.begin(), order.end(), [](const TensorInfo* a, const TensorInfo* b) {
    return std::pair(a->begin, a->end) < std::pair(b->begin, b->end);
  });
  uint64_t expected = 0;
  for (const TensorInfo* info : order) {
    if (info->begin != expected) {
      Broken(path_,
             fmt::format("tensor \"{}\" starts at byte {} of the data instead of {}: tensors "
                         "overlap or leave a gap",
                         info->name, info->begin, expected));
    }
    expected = info->end;
  }
  if (expected != data_bytes) {
    Broken(
        path_,
        fmt::format("the header promises {} bytes of data, the file has {}", expected, data_bytes),
        "truncated_file");
  }
}

const TensorInfo& SafetensorsFile::Info(std::string_view name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    throw UserError(fmt::format("{} has no tensor \"{}\"", path_.string(), name), "missing_tensor");
  }
  return found->second;
}

at::Tensor SafetensorsFile::View(std::string_view name) const {
  const TensorInfo& info = Info(name);
  return ViewRange(name, 0, info.numel()).view(info.shape);
}

at::Tensor SafetensorsFile::ViewRange(std::string_view name, int64_t first, int64_t count) const {
  const TensorInfo& info = Info(name);
  if (first < 0 || count < 0 || first + count > info.numel()) {
    throw InternalError(fmt::format("elements {} to {} of \"{}\", which has {}", first,
                                    first + count, info.name, info.numel()));
  }
  if (count == 0) return at::empty({0}, info.dtype);
  const auto size = static_cast<int64_t>(c10::elementSize(info.dtype));
  const std::byte* data = map_ + data_begin_ + info.begin + first * size;
  if (reinterpret_cast<uintptr_t>(data) % size != 0) {
    at::Tensor copy = at::empty({count}, info.dtype);
    std::memcpy(copy.data_ptr(), data, count * size);
    return copy;
  }
  return at::from_blob(
      const_cast<std::byte*>(data), {count}, [self = shared_from_this()](void*) {},
      at::TensorOptions(info.dtype));
}

void SafetensorsFile::ReadBytes(std::string_view name, int64_t first,
                                std::span<std::byte> to) const {
  const TensorInfo& info = Info(name);
  if (first < 0 || first + to.size() > info.bytes()) {
    throw InternalError(fmt::format("bytes {} to {} of \"{}\", which has {}", first,
                                    first + to.size(), info.name, info.bytes()));
  }
  const auto got = io::ReadAt(fd_.get(), static_cast<int64_t>(data_begin_ + info.begin) + first,
                              reinterpret_cast<char*>(to.data()), to.size(), path_.string());
  if (!got.ok()) throw InfrastructureError(std::string(Message(got.status())));
  if (*got < to.size()) {
    Broken(path_, fmt::format("it ended within \"{}\" while it was read", info.name),
           "truncated_file");
  }
}

void SafetensorsFile::DropPages(std::string_view name) const {
  const TensorInfo& info = Info(name);
  static const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  // Whole pages only: its neighbours share the first and the last.
  const uint64_t begin = (data_begin_ + info.begin + page - 1) / page * page;
  const uint64_t end = (data_begin_ + info.end) / page * page;
  if (begin < end) madvise(const_cast<std::byte*>(map_) + begin, end - begin, MADV_DONTNEED);
}

}  // namespace sft::engine
