-- cli_filter.lua - raises -N by the spares, so that a user says -N for the ranks alone, or nothing.
--
-- Copy it beside slurm.conf on the hosts where sbatch, salloc and srun run, put
--     CliFilterPlugins=cli_filter/lua
-- into slurm.conf, and tell the plugin in plugstack.conf, or it would refuse an -N that has not been
-- raised yet:
--     optional gtrain.so cli_filter
-- A site that has a cli_filter.lua of its own calls gtrain_raise_nodes(options) from its pre_submit.
--
-- Only sbatch, salloc and an srun outside of an allocation are looked at, and of those only the ones
-- that say --gtrain-plan: nothing is run, and nothing changes, for any other. Of a plan whose ranks
-- fill 4 nodes and that has one spare, no -N and -N4 become -N5, -N5 stays, and another number is left
-- for the plugin to refuse. The command runs as the user who submits.

local gtrain = "/usr/bin/gtrain"

-- What a user has typed, as one word of a shell's.
local function quote(word)
    return "'" .. string.gsub(word, "'", "'\\''") .. "'"
end

-- The whole number in a text, or nil: "2-4" is none.
local function whole(text)
    return text and string.match(text, "^%d+$") and tonumber(text)
end

-- Nodes for the ranks, and with spares; nil if the plan is wrong: the plugin says so better.
local function count_nodes(plan, spares, tasks_per_node)
    local command = quote(gtrain) .. " plan nodes"
    if spares then
        command = command .. " --spares " .. spares
    end
    command = command .. " --tasks-per-node " .. tasks_per_node .. " -- " .. quote(plan)
    local pipe = io.popen(command .. " 2>/dev/null", "r")
    if not pipe then
        return nil
    end
    local ranks, all = string.match(pipe:read("*a") or "", "^(%d+) (%d+)\n$")
    pipe:close()
    return tonumber(ranks), tonumber(all)
end

function gtrain_raise_nodes(options)
    local said = options["spank"] and options["spank"]["gtrain"]
    local plan = said and said["gtrain-plan"]
    if not plan or string.match(plan, "^inherit") then
        return
    end
    if options["type"] == "srun" and os.getenv("SLURM_JOB_ID") then
        return
    end
    local nodes = options["nodes"]
    if nodes == "1-0" then -- Slurm's word for nothing said
        nodes = nil
    end
    local given = whole(nodes)
    local per_node = whole(options["ntasks-per-node"]) or 1
    local tasks = whole(options["ntasks"])
    if nodes and not given then
        return
    end
    -- A total of tasks is for as many nodes as were said.
    if tasks and tasks > 1 and not whole(options["ntasks-per-node"]) then
        return
    end
    local ranks, all = count_nodes(plan, whole(said["gtrain-spares"]), per_node)
    if all and (not given or given == ranks) and given ~= all then
        options["nodes"] = tostring(all)
        if tasks and tasks > 1 then
            options["ntasks"] = tostring(all * per_node)
        end
    end
end

function slurm_cli_setup_defaults(options, early_pass)
    return slurm.SUCCESS
end

function slurm_cli_pre_submit(options, pack_offset)
    gtrain_raise_nodes(options)
    return slurm.SUCCESS
end

function slurm_cli_post_submit(offset, job_id, step_id)
    return slurm.SUCCESS
end
