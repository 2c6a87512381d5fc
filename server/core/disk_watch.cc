#include "server/core/disk_watch.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "common/base/bytes.h"

namespace sft::server {
namespace {

std::string FreeText(const v1::NodeDisk& disk) {
  const double share = disk.total_bytes() > 0 ? 100.0 * static_cast<double>(disk.free_bytes()) /
                                                    static_cast<double>(disk.total_bytes())
                                              : 0;
  return fmt::format("{} of {} free ({:.1f} %)", BytesText(disk.free_bytes()),
                     BytesText(disk.total_bytes()), share);
}

constexpr char kWhatToDo[] = "`sftctl storage` shows what takes the room, `sftctl rm` removes it";

}  // namespace

v1::NodeDisk DiskWatch::Measure(Nanos oldest) {
  const MutexLock lock(mutex_);
  const MonoTime now = clock_.Mono();
  if (known_ && now - measured_ < oldest) return disk_;
  const absl::StatusOr<io::DiskSpace> space = io::SpaceOf(dir_);
  if (!space.ok()) {
    spdlog::error("{}", Message(space.status()));
    return disk_;
  }
  const v1::NodeDisk::Level before = known_ ? disk_.level() : v1::NodeDisk::OK;
  measured_ = now;
  known_ = true;
  disk_.set_total_bytes(space->total);
  disk_.set_free_bytes(space->free);
  disk_.set_low_bytes(marks_.low.Of(*space));
  disk_.set_full_bytes(marks_.full.Of(*space));
  disk_.set_level(static_cast<v1::NodeDisk::Level>(io::LevelOf(*space, marks_)));
  if (disk_.level() == before) return disk_;
  if (disk_.level() == v1::NodeDisk::FULL) {
    spdlog::error(
        "disk of {}: {}: uploads and new jobs are refused until more than {} are "
        "free; {}",
        dir_, FreeText(disk_), BytesText(disk_.full_bytes()), kWhatToDo);
  } else if (disk_.level() == v1::NodeDisk::LOW) {
    spdlog::warn("disk of {}: {}: below the mark of {}; {}", dir_, FreeText(disk_),
                 BytesText(disk_.low_bytes()), kWhatToDo);
  } else {
    spdlog::info("disk of {}: {}: there is room again", dir_, FreeText(disk_));
  }
  return disk_;
}

bool DiskWatch::HasRoom(int64_t bytes, int64_t parts, v1::NodeDisk& disk) {
  const auto has = [&] {
    return disk.total_bytes() == 0 || disk.free_bytes() - bytes >= disk.full_bytes() / parts;
  };
  disk = Look();
  if (has()) return true;
  disk = Measure(Nanos(0));
  return has();
}

absl::Status DiskWatch::CheckRoom(std::string_view what, int64_t bytes) {
  v1::NodeDisk disk;
  if (HasRoom(bytes, 1, disk)) return absl::OkStatus();
  const std::string size = bytes > 0 ? " of " + BytesText(bytes) : std::string();
  return ResourceExhausted(
      fmt::format("{}{} is refused: the server's disk has {}, and {} stay free for what runs "
                  "(--disk-full); {}",
                  what, size, FreeText(disk), BytesText(disk.full_bytes()), kWhatToDo));
}

absl::Status DiskWatch::CheckDelivery(int64_t bytes) {
  constexpr int64_t kParts = 4;
  v1::NodeDisk disk;
  if (HasRoom(bytes, kParts, disk)) return absl::OkStatus();
  return ResourceExhausted(fmt::format(
      "the server's disk has {}, and {} stay free for its database (a quarter of "
      "--disk-full): a delivery of {} waits until there is room; {}",
      FreeText(disk), BytesText(disk.full_bytes() / kParts), BytesText(bytes), kWhatToDo));
}

std::string DiskWatch::Warning() {
  const v1::NodeDisk disk = Look();
  if (disk.level() == v1::NodeDisk::FULL) {
    return fmt::format("the server's disk has {}: uploads and new jobs are refused; {}",
                       FreeText(disk), kWhatToDo);
  }
  if (disk.level() == v1::NodeDisk::LOW) {
    return fmt::format("the server's disk has {}; {}", FreeText(disk), kWhatToDo);
  }
  return "";
}

}  // namespace sft::server
