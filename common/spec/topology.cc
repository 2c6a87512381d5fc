#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstddef>
#include <optional>

#include "common/spec/draft.h"

// The GPUs that a job asks for: type, count, nodes, GPUs per node and variant overlap, and
// [data.topology] repeats them.

namespace sft::spec {
namespace {

constexpr std::string_view kType = "compute.gpu_type", kVariant = "compute.variant",
                           kContainers = "data.topology.container_count",
                           kTotal = "data.topology.total_gpus";

constexpr int64_t kMaxPerNode = 1024;

struct Copy {
  std::string_view copy, original;
};
constexpr Copy kCopies[] = {{kContainers, kGpuCountKey},
                            {kTotal, kGpuCountKey},
                            {"data.topology.gpus_per_node", kGpusPerNodeKey},
                            {"data.topology.nodes", kNodesKey},
                            {"data.topology.variant", kVariant}};

struct Variant {
  std::string type;
  int64_t count = 0;
};

// Parses "H100-4x" into H100 and 4.
std::optional<Variant> ParseVariant(std::string_view text) {
  const size_t dash = text.rfind('-');
  if (dash == std::string_view::npos || dash == 0 || !text.ends_with('x')) return std::nullopt;
  const std::string_view digits = text.substr(dash + 1, text.size() - dash - 2);
  Variant variant{std::string(text.substr(0, dash))};
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), variant.count);
  if (error != std::errc() || end != digits.data() + digits.size() || variant.count < 1 ||
      variant.count > kMaxPerNode) {
    return std::nullopt;
  }
  return variant;
}

// Uses a copy in [data.topology] where the original is missing; an override of a copy counts as one
// of the original.
void MergeCopies(Draft* draft) {
  for (const Copy& pair : kCopies) {
    const DraftEntry* copy = draft->Find(pair.copy);
    if (copy == nullptr || draft->StrengthOf(pair.original) >= copy->strength) continue;
    // A count of containers in a file only confirms the other keys.
    if (pair.copy == kContainers && copy->strength == Strength::kFile) continue;
    draft->TakeFrom(pair.original, pair.copy);
  }
}

// Keeps the type and count named by a variant before an override of one of them removes it.
void UnfoldVariant(Draft* draft) {
  const auto variant = ParseVariant(draft->String(kVariant));
  if (!draft->DropFromFile(kVariant) || !variant) return;
  if (!draft->Has(kType)) draft->Derive(kType, variant->type, "compute.variant of the file");
  if (!draft->Has(kGpusPerNodeKey))
    draft->Derive(kGpusPerNodeKey, variant->count, "compute.variant of the file");
}

// An override of one key removes what the file says about keys that depend on it.
void DragAlong(Draft* draft) {
  const bool type = draft->Overridden(kType), count = draft->Overridden(kGpuCountKey),
             nodes = draft->Overridden(kNodesKey), per_node = draft->Overridden(kGpusPerNodeKey),
             variant = draft->Overridden(kVariant);
  if (!type && !count && !nodes && !per_node && !variant) return;
  if (!variant && (type || count || per_node)) UnfoldVariant(draft);
  if (variant) {
    draft->DropFromFile(kType);
    draft->DropFromFile(kGpusPerNodeKey);
    draft->DropFromFile(kGpuCountKey);
    if (count) draft->DropFromFile(kNodesKey);
  }
  if (count) {
    draft->DropFromFile(kGpusPerNodeKey);
    if (per_node) draft->DropFromFile(kNodesKey);
  }
  if (per_node || nodes) draft->DropFromFile(kGpuCountKey);
  for (const Copy& pair : kCopies) draft->DropFromFile(pair.copy);
}

// Sets type and count per node from the variant, if there is one.
void ApplyVariant(Draft* draft) {
  if (!draft->Has(kVariant)) return;
  const auto variant = ParseVariant(draft->String(kVariant));
  if (!variant) {
    draft->AddProblem(kVariant, fmt::format("must be TYPE-Nx, as \"H100-4x\", but is \"{}\"",
                                            draft->String(kVariant)));
    return;
  }
  if (!draft->Has(kType)) draft->Derive(kType, variant->type, kVariant);
  if (draft->String(kType) != variant->type) {
    draft->AddProblem(
        kVariant, fmt::format("{} contradicts {}; \"{}-{}x\" would agree", draft->Quote(kVariant),
                              draft->Quote(kType), draft->String(kType), variant->count));
  }
  if (!draft->Has(kGpusPerNodeKey)) draft->Derive(kGpusPerNodeKey, variant->count, kVariant);
  if (draft->Int(kGpusPerNodeKey) != variant->count) {
    draft->AddProblem(kVariant, fmt::format("{} contradicts {}; \"{}-{}x\" would agree",
                                            draft->Quote(kVariant), draft->Quote(kGpusPerNodeKey),
                                            variant->type, draft->Int(kGpusPerNodeKey)));
  }
}

// Count, nodes and count per node: a missing one is derived, given ones must multiply.
void ApplyCounts(Draft* draft) {
  if (draft->Has(kGpuCountKey)) {
    const int64_t count = draft->Int(kGpuCountKey);
    if (!draft->Has(kNodesKey)) {
      const int64_t per_node = draft->Has(kGpusPerNodeKey) ? draft->Int(kGpusPerNodeKey) : count;
      // Beside a variant, a count of all GPUs in [data.topology] only confirms: it must not become
      // the number of nodes.
      const bool confirms = draft->WrittenAs(kGpuCountKey) == kTotal &&
                            draft->StrengthOf(kGpuCountKey) == Strength::kFile &&
                            draft->Given(kVariant) && !draft->taken_before();
      const bool divides = count % per_node == 0 && !confirms;
      draft->Derive(kNodesKey, divides ? count / per_node : int64_t{1},
                    confirms ? "one node" : "gpu_count / gpus_per_node");
    }
    const int64_t nodes = draft->Int(kNodesKey);
    if (!draft->Has(kGpusPerNodeKey)) {
      if (count % nodes != 0) {
        draft->AddProblem(
            kGpuCountKey,
            fmt::format("{} cannot be divided over {}; {} or {} would do",
                        draft->Quote(kGpuCountKey), draft->Quote(kNodesKey),
                        std::max(count / nodes, int64_t{1}) * nodes, (count / nodes + 1) * nodes));
        return;
      }
      draft->Derive(kGpusPerNodeKey, count / nodes, "gpu_count / nodes");
    }
    if (nodes * draft->Int(kGpusPerNodeKey) != count) {
      draft->AddProblem(
          kGpuCountKey,
          fmt::format("{} is not {} * {}; {} = {} would agree", draft->Quote(kGpuCountKey),
                      draft->Quote(kNodesKey), draft->Quote(kGpusPerNodeKey),
                      LeafOf(draft->WrittenAs(kGpuCountKey)), nodes * draft->Int(kGpusPerNodeKey)));
    }
    return;
  }
  if (!draft->Has(kNodesKey)) draft->Derive(kNodesKey, int64_t{1}, "one node");
  if (!draft->Has(kGpusPerNodeKey)) draft->Derive(kGpusPerNodeKey, int64_t{1}, "one GPU");
  draft->Derive(kGpuCountKey, draft->Int(kNodesKey) * draft->Int(kGpusPerNodeKey),
                "nodes * gpus_per_node");
}

void CheckCopies(Draft* draft) {
  for (const Copy& pair : kCopies) {
    const DraftEntry* copy = draft->Find(pair.copy);
    const DraftEntry* original = draft->Find(pair.original);
    if (original == nullptr) continue;
    if (copy == nullptr) {
      draft->Derive(pair.copy, original->value, pair.original);
    } else if (copy->value != original->value) {
      draft->AddProblem(pair.copy,
                        fmt::format("{} contradicts {}; both must be the same",
                                    draft->Quote(pair.copy), draft->Quote(pair.original)));
    }
  }
}

}  // namespace

void ResolveTopology(const ResolveOptions& options, Draft* draft) {
  MergeCopies(draft);
  DragAlong(draft);
  ApplyVariant(draft);
  if (!draft->Has(kType) && !draft->Faulty({kType, kVariant})) {
    if (options.default_gpu_type.empty()) {
      draft->AddProblem(
          kType,
          "say which GPUs: gpu_type = \"H100\" with gpu_count, or variant = \"H100-4x\"; "
          "`sftctl variants` lists what there is (\"CPU\" for CPU slots)");
    } else {
      draft->Derive(kType, options.default_gpu_type, "the only type there is");
    }
  }
  if (draft->Has(kType) && draft->String(kType).empty()) {
    draft->AddProblem(kType, "must name a type, as \"H100\", but is empty");
  }
  if (!draft->Faulty({kGpuCountKey, kNodesKey, kGpusPerNodeKey})) ApplyCounts(draft);
  if (!draft->Has(kVariant) && draft->Has(kType) && draft->Has(kGpusPerNodeKey)) {
    draft->Derive(kVariant,
                  fmt::format("{}-{}x", draft->String(kType), draft->Int(kGpusPerNodeKey)),
                  "gpu_type and gpus_per_node");
  }
  CheckCopies(draft);
}

}  // namespace sft::spec
