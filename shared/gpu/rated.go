package gpu

// Grade says how well a reference throughput is known.
type Grade string

// The grades.
const (
	GradeA    Grade = "A"    // two independent sources within about 5 %
	GradeB    Grade = "B"    // one source, or sources further apart
	GradeC    Grade = "C"    // by analogy with a sibling
	GradeNone Grade = "none" // no published figure
)

// Rating is one row.
type Rating struct{}
