#include "server/blob/rank_log.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string_view>
#include <tuple>

#include "common/io/file.h"

namespace sft::server {
namespace {

static_assert(std::endian::native == std::endian::little, "points are little-endian");
static_assert(sizeof(RankPoint) == 32);

constexpr std::string_view kBegin = "rank-", kEnd = ".points";

struct Header {
  char magic[4] = {'S', 'F', 'T', 'R'};
  uint32_t version = 1;
  int64_t told = 1;
};
static_assert(sizeof(Header) == 16);

struct Content {
  int64_t told = 1;  // of a full point
  std::vector<RankPoint> points;
};

template <typename T>
std::string_view BytesOf(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

std::string BytesOf(const std::vector<RankPoint>& points, size_t from) {
  std::string bytes;
  for (size_t i = from; i < points.size(); ++i) bytes += BytesOf(points[i]);
  return bytes;
}

std::string PathOf(const std::string& dir, const std::string& job_id, int rank) {
  return fmt::format("{}/{}/{}{}{}", dir, job_id, kBegin, rank, kEnd);
}

// The rank whose file has that name.
std::optional<int> RankOf(std::string_view name) {
  if (!name.starts_with(kBegin) || !name.ends_with(kEnd)) return std::nullopt;
  name.remove_prefix(kBegin.size());
  name.remove_suffix(kEnd.size());
  int rank = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), rank);
  if (error != std::errc() || end != name.data() + name.size()) return std::nullopt;
  return rank;
}

// Empty for a file that is missing or none of ours.
absl::StatusOr<Content> Load(const std::string& path) {
  Content content;
  const absl::StatusOr<std::string> bytes = io::ReadFile(path, int64_t{1} << 20);
  if (absl::IsNotFound(bytes.status())) return content;
  SFT_RETURN_IF_ERROR(bytes.status());
  Header header;
  if (bytes->size() >= sizeof(header)) std::memcpy(&header, bytes->data(), sizeof(header));
  const Header ours;
  if (bytes->size() < sizeof(header) || std::memcmp(header.magic, ours.magic, 4) != 0 ||
      header.version != ours.version || header.told < 1) {
    spdlog::error("{} cannot be read: the rank's points begin anew", path);
    return content;
  }
  content.told = header.told;
  // A point that a crash has cut is not there.
  content.points.resize((bytes->size() - sizeof(header)) / sizeof(RankPoint));
  std::memcpy(content.points.data(), bytes->data() + sizeof(header),
              content.points.size() * sizeof(RankPoint));
  return content;
}

void MergeInto(const RankPoint& later, RankPoint& point) {
  const auto weight = [](const RankPoint& p) { return std::isfinite(p.loss) ? p.told : 0; };
  const int known = weight(point) + weight(later);
  if (weight(point) == 0) {
    point.loss = later.loss;
  } else if (weight(later) > 0) {
    point.loss = (point.loss * weight(point) + later.loss * weight(later)) / known;
  }
  point.attempt = later.attempt;
  point.step = later.step;
  point.told += later.told;
  point.memory_bytes = std::max(point.memory_bytes, later.memory_bytes);
}

void Halve(Content& content) {
  content.told *= 2;
  std::vector<RankPoint> half;
  for (size_t i = 0; i < content.points.size(); ++i) {
    if (i % 2 == 0) {
      half.push_back(content.points[i]);
    } else {
      MergeInto(content.points[i], half.back());
    }
  }
  content.points = std::move(half);
}

void Take(const RankPoint& point, Content& content) {
  std::vector<RankPoint>& points = content.points;
  while (!points.empty() && points.back().attempt < point.attempt &&
         points.back().step >= point.step) {
    points.pop_back();
  }
  if (points.empty()) {
    points.push_back(point);
    return;
  }
  RankPoint& last = points.back();
  if (std::tie(point.attempt, point.step) <= std::tie(last.attempt, last.step)) return;
  if (last.attempt == point.attempt && last.told < content.told) {
    MergeInto(point, last);
    return;
  }
  points.push_back(point);
  if (static_cast<int>(points.size()) > RankLog::kMaxPoints) Halve(content);
}

// Puts a new file in place of the one that is there. Without waiting for the disk: all ranks of a
// job do so at once, and others wait meanwhile.
absl::Status Replace(const std::string& path, const std::string& bytes) {
  const std::string fresh = path + ".new";
  SFT_ASSIGN_OR_RETURN(io::AppendFile file, io::AppendFile::Open(fresh));
  SFT_RETURN_IF_ERROR(file.Truncate(0));
  SFT_RETURN_IF_ERROR(file.Append(bytes));
  std::error_code error;
  std::filesystem::rename(fresh, path, error);
  return error ? ErrnoStatus("cannot rename " + fresh, error.value()) : absl::OkStatus();
}

bool Same(const RankPoint& a, const RankPoint& b) {
  return a.attempt == b.attempt && a.step == b.step && a.told == b.told;
}

}  // namespace

absl::Status RankLog::Append(const std::string& job_id, int rank,
                             const std::vector<RankPoint>& points) {
  if (points.empty()) return absl::OkStatus();
  const std::string path = PathOf(dir_, job_id, rank);
  MutexLock lock(mutex_);
  SFT_ASSIGN_OR_RETURN(const Content before, Load(path));
  Content now = before;
  for (const RankPoint& point : points) Take(point, now);
  Header header;
  header.told = now.told;
  if (before.points.empty() || now.told != before.told) {
    SFT_RETURN_IF_ERROR(io::MakeDirs(dir_ + "/" + job_id));
    return Replace(path, std::string(BytesOf(header)) + BytesOf(now.points, 0));
  }
  const size_t most = std::min(before.points.size(), now.points.size());
  size_t same = most;
  while (same > 0 && !Same(before.points[same - 1], now.points[same - 1])) --same;
  if (same == before.points.size() && same == now.points.size()) return absl::OkStatus();
  SFT_ASSIGN_OR_RETURN(io::AppendFile file, io::AppendFile::Open(path));
  SFT_RETURN_IF_ERROR(
      file.Truncate(static_cast<int64_t>(sizeof(header) + same * sizeof(RankPoint))));
  return file.Append(BytesOf(now.points, same));
}

absl::StatusOr<std::map<int, std::vector<RankPoint>>> RankLog::Read(const std::string& job_id) {
  std::map<int, std::vector<RankPoint>> ranks;
  const std::string folder = dir_ + "/" + job_id;
  MutexLock lock(mutex_);
  if (!io::IsDirectory(folder)) return ranks;
  SFT_ASSIGN_OR_RETURN(const std::vector<std::string> names, io::ListDir(folder));
  for (const std::string& name : names) {
    const std::optional<int> rank = RankOf(name);
    if (!rank) continue;
    SFT_ASSIGN_OR_RETURN(Content content, Load(folder + "/" + name));
    if (!content.points.empty()) ranks[*rank] = std::move(content.points);
  }
  return ranks;
}

}  // namespace sft::server
