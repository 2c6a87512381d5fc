#include "worker/engine/checkpoint/manifest.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "common/base/json.h"
#include "common/io/file.h"
#include "common/io/sha256.h"
#include "worker/engine/base/error.h"

namespace sft::engine {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int64_t kMaxBytes = int64_t{1} << 28;
constexpr const char* kHash = "manifest_sha256";
constexpr const char* kAdvice =
    "Copy the checkpoint again if it was copied, or resume from another one (sftctl resume JOB "
    "--from STEP).";

[[noreturn]] void Damaged(const std::string& message) {
  throw InfrastructureError(message, "checkpoint_damaged", kAdvice);
}

json ToJson(const Manifest& m) {
  json files = json::array();
  for (const CheckpointFile& file : m.files) {
    files.push_back(
        {{"name", file.name}, {"rank", file.rank}, {"size", file.size}, {"sha256", file.sha256}});
  }
  json all = {{"format_version", Manifest::kFormat},
              {"engine_version", m.engine_version},
              {"step", m.step},
              {"epoch", m.epoch},
              {"samples", m.samples},
              {"world", m.world},
              {"sharding", m.sharding},
              {"reason", m.reason},
              {"optimizer_steps", m.optimizer_steps},
              {"best_step", m.best_step},
              {"validations_without_gain", m.validations_without_gain},
              {"files", std::move(files)},
              {"stamp", m.stamp}};
  if (m.best_metric) all["best_metric"] = *m.best_metric;
  return all;
}

Manifest FromJson(const json& all) {
  Manifest m;
  m.engine_version = all.at("engine_version").get<std::string>();
  m.step = all.at("step").get<int64_t>();
  m.epoch = all.at("epoch").get<double>();
  m.samples = all.at("samples").get<int64_t>();
  m.world = all.at("world").get<int>();
  m.sharding = all.at("sharding").get<std::string>();
  m.reason = all.at("reason").get<std::string>();
  m.optimizer_steps = all.at("optimizer_steps").get<int64_t>();
  m.best_step = all.at("best_step").get<int64_t>();
  m.validations_without_gain = all.at("validations_without_gain").get<int64_t>();
  if (all.contains("best_metric")) m.best_metric = all.at("best_metric").get<double>();
  for (const json& file : all.at("files")) {
    m.files.push_back({file.at("name").get<std::string>(), file.at("rank").get<int>(),
                       file.at("size").get<int64_t>(), file.at("sha256").get<std::string>()});
    // A name leads to nothing outside the folder.
    if (m.files.back().name.find('/') != std::string::npos) throw std::out_of_range("a path");
  }
  m.stamp = all.at("stamp").get<Stamp>();
  return m;
}

void CheckFormat(const json& all, const fs::path& path) {
  const auto found = all.find("format_version");
  if (found == all.end() || !found->is_number_integer()) {
    Damaged(fmt::format("{} names no format version: it is no manifest of a checkpoint",
                        path.string()));
  }
  const auto version = found->get<int64_t>();
  if (version <= Manifest::kFormat) return;
  const auto engine = all.find("engine_version");
  throw UserError(
      fmt::format("the checkpoint {} has format {}, written by engine {}; this one reads formats "
                  "up to {}",
                  path.parent_path().string(), version,
                  engine != all.end() && engine->is_string() ? engine->get<std::string>() : "?",
                  Manifest::kFormat),
      "checkpoint_newer", "Upgrade the workers, or resume from a checkpoint of this version.");
}

}  // namespace

std::string Manifest::ToText() const {
  json all = ToJson(*this);
  all[kHash] = io::Sha256Hex(DumpJson(all));
  return DumpJson(all, 1) + "\n";
}

Manifest ReadManifest(const fs::path& dir) {
  const fs::path path = dir / Manifest::kFileName;
  if (!fs::exists(path)) {
    Damaged(fmt::format("{} is no complete checkpoint: it has no {}", dir.string(),
                        Manifest::kFileName));
  }
  const auto text = io::ReadFile(path.string(), kMaxBytes);
  if (!text.ok()) Damaged(std::string(Message(text.status())));
  json all = ParseJson(*text);
  if (!all.is_object()) Damaged(fmt::format("{} is cut short or not JSON", path.string()));
  CheckFormat(all, path);
  const auto hash = all.find(kHash);
  const std::string stated =
      hash != all.end() && hash->is_string() ? hash->get<std::string>() : std::string();
  all.erase(kHash);
  if (stated != io::Sha256Hex(DumpJson(all))) {
    Damaged(fmt::format("{} is not as it was written: its hash differs", path.string()));
  }
  try {
    return FromJson(all);
  } catch (const std::exception& error) {
    Damaged(fmt::format("{} lacks a member or has one of another type: {}", path.string(),
                        error.what()));
  }
}

void VerifyFile(const fs::path& dir, const CheckpointFile& file) {
  const std::string path = (dir / file.name).string();
  if (!io::Exists(path)) {
    Damaged(fmt::format("{} is missing: the checkpoint's manifest lists it, written by rank {}",
                        path, file.rank));
  }
  const auto size = io::FileSize(path);
  if (!size.ok()) Damaged(std::string(Message(size.status())));
  if (*size != file.size) {
    Damaged(fmt::format("{} has {} bytes, was written with {}", path, *size, file.size));
  }
  const auto hash = io::HashFile(path);
  if (!hash.ok()) Damaged(std::string(Message(hash.status())));
  if (hash->sha256 != file.sha256) {
    Damaged(fmt::format("{} was changed after it was written: its SHA-256 is {}, was {}", path,
                        hash->sha256, file.sha256));
  }
}

std::string CheckpointName(int64_t step) { return fmt::format("step-{}", step); }

std::string ShardName(int rank, int world, size_t index) {
  const std::string number = index == 0 ? std::string() : fmt::format("-{}", index + 1);
  return fmt::format("rank-{}-of-{}{}.safetensors", rank, world, number);
}

}  // namespace sft::engine
