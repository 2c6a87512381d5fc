#include "worker/engine/checkpoint/safetensors_writer.h"

#include <ATen/ATen.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "common/base/json.h"
#include "common/io/file.h"
#include "worker/engine/base/error.h"
#include "worker/engine/checkpoint/disk.h"

namespace sft::engine {
namespace {

constexpr uint64_t kAlignment = 64;
// Converted and copied to the host at a time: a tensor of gigabytes needs no second copy of itself.
constexpr int64_t kPieceElements = int64_t{1} << 24;

std::string HeaderText(const std::vector<TensorInfo>& infos,
                       const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header;
  header["__metadata__"] = metadata;
  for (const TensorInfo& info : infos) {
    header[info.name] = {{"dtype", SafetensorsDtype(info.dtype)},
                         {"shape", info.shape},
                         {"data_offsets", {info.begin, info.end}}};
  }
  std::string text = DumpJson(header);
  // Spaces are legal padding; 8 bytes of length stand before the text.
  text.append((kAlignment - (text.size() + 8) % kAlignment) % kAlignment, ' ');
  return text;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(std::filesystem::path path, std::vector<TensorInfo> infos,
                                     std::map<std::string, std::string> metadata, bool hashed)
    : path_(std::move(path)), temporary_(path_) {
  if (hashed) hash_.emplace();
  temporary_ += ".partial";
  metadata.emplace("format", "pt");
  std::stable_sort(infos.begin(), infos.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return c10::elementSize(a.dtype) > c10::elementSize(b.dtype);
  });
  for (TensorInfo& info : infos) {
    info.begin = total_bytes_;
    total_bytes_ += static_cast<uint64_t>(info.numel()) * c10::elementSize(info.dtype);
    info.end = total_bytes_;
    order_.push_back(info.name);
    if (!entries_.emplace(info.name, Entry{info}).second) {
      throw InternalError(
          fmt::format("tensor \"{}\" is given twice to {}", info.name, path_.string()));
    }
  }
  const std::string header = HeaderText(infos, metadata);
  data_begin_ = 8 + header.size();
  fd_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0) ThrowDiskError("create", temporary_, errno, data_begin_ + total_bytes_);
  try {
    // A full disk is found before hours of work on it; file systems without the call are left
    // alone.
    if (fallocate(fd_, 0, 0, static_cast<off_t>(data_begin_ + total_bytes_)) != 0 &&
        (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)) {
      ThrowDiskError("reserve space for", path_, errno, data_begin_ + total_bytes_);
    }
    const uint64_t length = header.size();
    WriteAt(&length, sizeof length, 0);
    WriteAt(header.data(), header.size(), sizeof length);
  } catch (const Error&) {
    Discard();
    throw;
  }
}

SafetensorsWriter::~SafetensorsWriter() { Discard(); }

void SafetensorsWriter::Discard() {
  if (fd_ < 0) return;
  close(fd_);
  fd_ = -1;
  unlink(temporary_.c_str());
}

void SafetensorsWriter::Write(std::string_view name, const at::Tensor& tensor) {
  Entry& entry = Find(name);
  if (tensor.sizes() != at::IntArrayRef(entry.info.shape)) {
    throw InternalError(fmt::format("tensor \"{}\" has the shape [{}], announced was [{}]", name,
                                    fmt::join(tensor.sizes(), ", "),
                                    fmt::join(entry.info.shape, ", ")));
  }
  Put(entry, 0, tensor.reshape(-1));
}

void SafetensorsWriter::WriteRange(std::string_view name, int64_t first, const at::Tensor& part) {
  Put(Find(name), first, part.reshape(-1));
}

SafetensorsWriter::Entry& SafetensorsWriter::Find(std::string_view name) {
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    throw InternalError(fmt::format("tensor \"{}\" was not announced to {}", name, path_.string()));
  }
  return found->second;
}

void SafetensorsWriter::Put(Entry& entry, int64_t first, const at::Tensor& part) {
  const int64_t count = part.numel(), numel = entry.info.numel();
  if (first < 0 || first + count > numel || entry.written + count > numel) {
    throw InternalError(
        fmt::format("elements {} to {} of \"{}\" are outside its {} or written twice", first,
                    first + count, entry.info.name, numel));
  }
  const auto size = static_cast<int64_t>(c10::elementSize(entry.info.dtype));
  for (int64_t done = 0; done < count; done += kPieceElements) {
    const int64_t piece = std::min(kPieceElements, count - done);
    const at::Tensor host =
        part.detach().narrow(0, done, piece).to(entry.info.dtype).to(at::kCPU).contiguous();
    WriteAt(host.const_data_ptr(), piece * size,
            data_begin_ + entry.info.begin + (first + done) * size);
  }
  entry.written += count;
}

void SafetensorsWriter::WriteAt(const void* data, uint64_t size, uint64_t offset) {
  const char* from = static_cast<const char*>(data);
  if (hash_) {
    if (offset != hashed_) {
      throw InternalError(fmt::format("{} is hashed and not written in order", path_.string()));
    }
    hash_->Update(data, size);
    hashed_ += size;
  }
  while (size > 0) {
    const ssize_t put = pwrite(fd_, from, size, static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) ThrowDiskError("write", path_, put < 0 ? errno : EIO, data_begin_ + total_bytes_);
    from += put;
    offset += static_cast<uint64_t>(put);
    size -= static_cast<uint64_t>(put);
    // Written out as it comes, so that the sync at the end is short. Only advice.
    sync_file_range(fd_, static_cast<off_t>(offset) - put, put, SYNC_FILE_RANGE_WRITE);
  }
}

void SafetensorsWriter::Commit() {
  for (const auto& [name, entry] : entries_) {
    if (entry.written != entry.info.numel()) {
      throw InternalError(fmt::format("{} of {} elements of \"{}\" were written to {}",
                                      entry.written, entry.info.numel(), name, path_.string()));
    }
  }
  if (fsync(fd_) != 0) ThrowDiskError("write", path_, errno, data_begin_ + total_bytes_);
  if (rename(temporary_.c_str(), path_.c_str()) != 0) ThrowDiskError("create", path_, errno, 0);
  close(fd_);
  fd_ = -1;
}

void WriteSafetensors(const std::filesystem::path& path, std::span<const NamedTensor> tensors,
                      std::map<std::string, std::string> metadata) {
  std::vector<TensorInfo> infos;
  for (const NamedTensor& named : tensors) {
    infos.push_back({.name = named.name,
                     .dtype = named.tensor.scalar_type(),
                     .shape = named.tensor.sizes().vec()});
  }
  SafetensorsWriter writer(path, std::move(infos), std::move(metadata));
  for (const NamedTensor& named : tensors) writer.Write(named.name, named.tensor);
  writer.Commit();
}

}  // namespace sft::engine
