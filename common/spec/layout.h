#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/spec/job_spec.h"
#include "common/spec/resolve.h"

// How a job is divided over its GPUs, as a choice that a plan may make (common/plan/layout.h).

namespace sft::spec {

// What is divided: what ranks hold, layers, the tokens of rows, matrices.
struct Layout {
  Sharding sharding = Sharding::kDdp;
  int stages = 1, pieces = 1;  // pipeline_parallel_size, virtual_pipeline_parallel_size
  int context = 1, tensor = 1;

  bool operator==(const Layout&) const = default;
};

Layout LayoutOf(const JobSpec& spec);

// The keys that give it, as in a job file: "fsdp = true, context_parallel_size = 2".
std::string ToText(const Layout& layout);

// Whether the file or an override says how the job is divided: by any key of a layout, whatever its
// value, but for device_map = "auto", which asks the plan.
bool NamesLayout(const Resolution& resolution);

// The layouts for the GPUs of a job, the simplest first. Some may not go with the job, or its
// model.
std::vector<Layout> LayoutsFor(const JobSpec::Compute& compute);

// A job file and what was said beside it, as Resolve takes them.
struct JobText {
  std::string_view text, file_name;
  const std::vector<Override>& overrides;
  const ResolveOptions& options;
};

// The job in another layout, with the rows of a step and of a micro-batch that `resolution` has;
// with problems where the layout does not go with it.
Resolution InLayout(const JobText& job, const Resolution& resolution, const Layout& layout);

// As Resolve. But where nobody names a layout and the rows of a step are too few for all GPUs to
// have their own, in the first layout in which some share theirs.
Resolution ResolveInSomeLayout(const JobText& job);

// Whether the layout is such a first one: nothing says yet that it goes with the model.
bool SharesFewRows(const Resolution& resolution);

// The job with the layout and the batch of `other`, which is the same job in another one.
JobSpec WithLayout(JobSpec spec, const JobSpec& other);

// How the origin of a value begins that the plan has chosen.
inline constexpr std::string_view kChosenByPlan = "derived: chosen by the plan";

// The origin of a batch that was divided anew for the layout.
inline constexpr std::string_view kBatchOrigin =
    "derived: global_batch over the ranks of the layout";

// How the origin of a key begins that a job has of the job that it goes on with, where nobody named
// the layout; behind it stands that job.
inline constexpr std::string_view kKeptLayout = "derived: the layout of ";

// Whether the layout is such a one.
bool KeepsLayout(const Resolution& resolution);

// The same of a whole resolution: the layout is chosen by the plan, which has this to say of it.
void TakeLayout(const Resolution& other, std::string_view remark, Resolution& resolution);

// The keys that give a layout, but for device_map.
bool IsLayoutKey(std::string_view key);

}  // namespace sft::spec
