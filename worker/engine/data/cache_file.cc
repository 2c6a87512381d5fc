#include "worker/engine/data/cache_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "common/base/ids.h"
#include "common/base/json.h"
#include "common/io/file.h"
#include "common/io/sha256.h"
#include "worker/engine/base/error.h"
#include "worker/engine/data/files.h"

namespace sft::engine {
namespace {

static_assert(std::endian::native == std::endian::little, "the cache file is little-endian");

constexpr std::array<char, 8> kMagic = {'S', 'F', 'T', 'D', 'A', 'T', 'A', '2'};

struct Header {
  std::array<char, 8> magic = kMagic;
  std::array<char, 64> key = {};
  io::Sha256::Digest digest = {};
  uint64_t documents = 0;
  uint64_t tokens = 0;
  uint64_t stats_size = 0;
};
static_assert(sizeof(Header) == 128);

size_t Padded(size_t size) { return (size + 7) / 8 * 8; }

template <typename T>
std::string_view BytesOf(std::span<const T> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}

nlohmann::json StatsToJson(const DatasetStats& stats) {
  nlohmann::json rows = nlohmann::json::array();
  for (const SkippedRow& row : stats.skipped_rows) {
    rows.push_back(
        {{"line", row.line}, {"problem", static_cast<int>(row.problem)}, {"reason", row.reason}});
  }
  return {{"rows", stats.rows},
          {"used", stats.used},
          {"documents", stats.documents},
          {"forms", stats.forms},
          {"cut", stats.cut},
          {"cut_tokens", stats.cut_tokens},
          {"cut_loss_tokens", stats.cut_loss_tokens},
          {"held_out", stats.held_out},
          {"repeated", stats.repeated},
          {"repeats", stats.repeats},
          {"tokens", stats.tokens},
          {"loss_tokens", stats.loss_tokens},
          {"longest", stats.longest},
          {"skipped", stats.skipped},
          {"skipped_tokens", stats.skipped_tokens},
          {"skipped_loss_tokens", stats.skipped_loss_tokens},
          {"skipped_rows", std::move(rows)}};
}

DatasetStats StatsFromJson(const nlohmann::json& json) {
  DatasetStats stats;
  json.at("rows").get_to(stats.rows);
  json.at("used").get_to(stats.used);
  json.at("documents").get_to(stats.documents);
  json.at("forms").get_to(stats.forms);
  json.at("cut").get_to(stats.cut);
  json.at("cut_tokens").get_to(stats.cut_tokens);
  json.at("cut_loss_tokens").get_to(stats.cut_loss_tokens);
  stats.held_out = json.value("held_out", int64_t{0});  // files of before have none
  stats.repeated = json.value("repeated", int64_t{0});
  stats.repeats = json.value("repeats", std::vector<int64_t>());
  json.at("tokens").get_to(stats.tokens);
  json.at("loss_tokens").get_to(stats.loss_tokens);
  json.at("longest").get_to(stats.longest);
  const auto& skipped = json.at("skipped");  // files of before have fewer
  for (size_t i = 0; i < std::min<size_t>(kRowProblems, skipped.size()); ++i) {
    skipped.at(i).get_to(stats.skipped[i]);
  }
  stats.skipped_tokens = json.value("skipped_tokens", int64_t{0});
  stats.skipped_loss_tokens = json.value("skipped_loss_tokens", int64_t{0});
  for (const auto& row : json.at("skipped_rows")) {
    stats.skipped_rows.push_back({.line = row.at("line").get<int64_t>(),
                                  .problem = static_cast<RowProblem>(row.at("problem").get<int>()),
                                  .reason = row.at("reason").get<std::string>()});
  }
  return stats;
}

// Hands out the parts of a file one after the other.
class Parts {
 public:
  explicit Parts(std::string_view bytes) : rest_(bytes) {}

  template <typename T>
  std::span<const T> Take(uint64_t count) {
    if (count > rest_.size() / sizeof(T)) return Fail<T>();
    const size_t size = count * sizeof(T);
    const std::span<const T> part(reinterpret_cast<const T*>(rest_.data()), count);
    rest_.remove_prefix(std::min(Padded(size), rest_.size()));
    return part;
  }

  bool whole() const { return ok_ && rest_.empty(); }

 private:
  template <typename T>
  std::span<const T> Fail() {
    ok_ = false;
    return {};
  }
  std::string_view rest_;
  bool ok_ = true;
};

void WriteParts(int fd, std::string_view path, const std::vector<std::string_view>& parts) {
  static constexpr std::array<char, 8> kZeros = {};
  for (const std::string_view part : parts) {
    ThrowIfNodeError(io::WriteAll(fd, part, path));
    ThrowIfNodeError(io::WriteAll(fd, {kZeros.data(), Padded(part.size()) - part.size()}, path));
  }
  if (fsync(fd) != 0) ThrowIfNodeError(ErrnoStatus(path, errno));
}

}  // namespace

void CacheContents::Add(std::span<const int32_t> document, std::span<const uint8_t> document_loss,
                        int64_t line) {
  tokens.insert(tokens.end(), document.begin(), document.end());
  loss.insert(loss.end(), document_loss.begin(), document_loss.end());
  offsets.push_back(tokens.size());
  lines.push_back(static_cast<uint64_t>(line));
  loss_counts.push_back(static_cast<uint32_t>(
      std::ranges::count_if(document_loss, [](uint8_t mark) { return mark != 0; })));
  const auto size = static_cast<int64_t>(document.size());
  ++stats.documents;
  stats.tokens += size;
  stats.loss_tokens += loss_counts.back();
  stats.longest = std::max(stats.longest, size);
}

CacheView CacheContents::View() const { return {offsets, lines, loss_counts, tokens, loss, stats}; }

void WriteCacheFile(const std::filesystem::path& path, std::string_view key,
                    const CacheContents& contents) {
  const std::string stats = DumpJson(StatsToJson(contents.stats));
  Header header;
  if (key.size() != header.key.size()) throw InternalError("a cache key that is not a SHA-256");
  std::memcpy(header.key.data(), key.data(), key.size());
  header.documents = contents.lines.size();
  header.tokens = contents.tokens.size();
  header.stats_size = stats.size();

  const CacheView view = contents.View();
  const std::string_view header_bytes(reinterpret_cast<const char*>(&header), sizeof(header));
  const std::vector<std::string_view> parts = {header_bytes,
                                               BytesOf(view.offsets),
                                               BytesOf(view.lines),
                                               BytesOf(view.loss_counts),
                                               BytesOf(view.tokens),
                                               BytesOf(view.loss),
                                               stats};
  io::Sha256 hash;
  for (const std::string_view part : parts) {
    hash.Update(part);
    hash.Update(std::string(Padded(part.size()) - part.size(), '\0'));
  }
  header.digest = hash.Finish();

  ThrowIfNodeError(io::MakeDirs(path.parent_path().string()));
  const std::string temporary = path.string() + "." + RandomId("tmp");
  io::UniqueFd fd(open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!fd.valid()) ThrowIfNodeError(ErrnoStatus(temporary, errno));
  try {
    WriteParts(fd.get(), temporary, parts);
    ThrowIfNodeError(fd.Close());
    ThrowIfNodeError(io::RenameDurably(temporary, path.string()));
  } catch (const Error&) {
    unlink(temporary.c_str());
    throw;
  }
}

CacheView ReadCacheFile(std::string_view bytes, std::string_view key, std::string_view path) {
  const auto broken = [path](std::string_view why) {
    return InternalError(
        fmt::format("{}: {}; delete it, it is made again from the data", path, why));
  };
  Header header;
  if (bytes.size() < sizeof(header)) throw broken("too short for a prepared data set");
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.magic != kMagic) throw broken("not a prepared data set of this version");
  if (!key.empty() && key != std::string_view(header.key.data(), header.key.size())) {
    throw broken("made from other data");
  }
  const io::Sha256::Digest expected = header.digest;
  header.digest = {};
  io::Sha256 hash;
  hash.Update(&header, sizeof(header));
  hash.Update(bytes.substr(sizeof(header)));
  if (hash.Finish() != expected) throw broken("cut short or damaged");

  Parts parts(bytes.substr(sizeof(header)));
  CacheView view;
  view.offsets = parts.Take<uint64_t>(header.documents + 1);
  view.lines = parts.Take<uint64_t>(header.documents);
  view.loss_counts = parts.Take<uint32_t>(header.documents);
  view.tokens = parts.Take<int32_t>(header.tokens);
  view.loss = parts.Take<uint8_t>(header.tokens);
  const std::span<const char> stats = parts.Take<char>(header.stats_size);
  if (!parts.whole()) throw broken("its parts do not fill it");
  view.stats = StatsFromJson(ParseJson({stats.data(), stats.size()}));
  return view;
}

}  // namespace sft::engine
