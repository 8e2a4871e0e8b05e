package trainer

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/gonum"
)

const (
	inputs  = 8
	classes = 3
	batch   = 16
	samples = 512

	rate  = 0.005 // Adam, with the constants of its paper
	beta1 = 0.9
	beta2 = 0.999
	tiny  = 1e-8

	// smallest is the hidden width of New; a step of it takes some ten microseconds.
	smallest = 16
	widest   = 1 << 14
)

// Model is a network of one hidden layer that learns to tell three clouds of points apart, with Adam. Everything
// that its next step depends on is in its state; two models of one seed and width that have made the same number
// of steps are equal bit for bit, on one processor architecture, however often they were stored in between. It is
// not for concurrent use.
type Model struct {
	seed   uint64
	hidden int
	steps  int64
	step   int64

	weights     []float64 // w1 (inputs × hidden), b1, w2 (hidden × classes), b2
	mean, power []float64 // of Adam, as long as the weights
	order       []uint32  // the samples in the order of this pass
	next        int       // the first one of the next batch
	rng         *rand.PCG // shuffles the order

	// The rest follows from the seed or is scratch.
	points       []float64 // samples × inputs
	labels       []int
	grad         []float64
	x, h, dh     []float64 // batch × inputs, batch × hidden twice
	out          []float64 // batch × classes
	batchClasses [batch]int
}

// New returns the smallest model, at step 0 of steps.
func New(seed uint64, steps int64) *Model { return NewWide(seed, steps, smallest) }

// NewWide returns a model with so many hidden units, from 1 to 16384; its checkpoint has about 300 bytes for each.
func NewWide(seed uint64, steps int64, hidden int) *Model {
	m := blank(seed, steps, min(max(hidden, 1), widest))
	w1, _, w2, _ := m.layers(m.weights)
	init := rand.New(m.rng)
	fill(w1, init, math.Sqrt(2.0/inputs))
	fill(w2, init, math.Sqrt(2.0/float64(m.hidden)))
	for i := range m.order {
		m.order[i] = uint32(i)
	}
	m.shuffle()
	return m
}

// blank returns a model with its data and no state.
func blank(seed uint64, steps int64, hidden int) *Model {
	n := inputs*hidden + hidden + hidden*classes + classes
	m := &Model{
		seed: seed, hidden: hidden, steps: steps,
		weights: make([]float64, n), mean: make([]float64, n), power: make([]float64, n), grad: make([]float64, n),
		order: make([]uint32, samples), rng: rand.NewPCG(seed, 0x10717de),
		points: make([]float64, samples*inputs), labels: make([]int, samples),
		x: make([]float64, batch*inputs), h: make([]float64, batch*hidden), dh: make([]float64, batch*hidden),
		out: make([]float64, batch*classes),
	}
	data := rand.New(rand.NewPCG(seed, 0xda7a))
	centres := make([]float64, classes*inputs)
	fill(centres, data, 1)
	fill(m.points, data, 1)
	for i := range m.labels {
		m.labels[i] = i % classes
		for j := range inputs {
			m.points[i*inputs+j] += centres[m.labels[i]*inputs+j]
		}
	}
	return m
}

func fill(v []float64, r *rand.Rand, scale float64) {
	for i := range v {
		v[i] = scale * r.NormFloat64()
	}
}

// layers cuts a vector as long as the weights.
func (m *Model) layers(v []float64) (w1, b1, w2, b2 []float64) {
	i := inputs * m.hidden
	j := i + m.hidden
	k := j + m.hidden*classes
	return v[:i], v[i:j], v[j:k], v[k:]
}

// At is how many steps were made.
func (m *Model) At() int64 { return m.step }

// Of is how many steps there are to make.
func (m *Model) Of() int64 { return m.steps }

// Done reports whether all steps were made.
func (m *Model) Done() bool { return m.step >= m.steps }

// Sum is the SHA-256 of the weights, in hex.
func (m *Model) Sum() string {
	sum := sha256.Sum256(floats(m.weights))
	return hex.EncodeToString(sum[:])
}

// Step learns from the next batch and returns its mean loss, in nats. When all steps were made it does nothing and
// returns zero.
func (m *Model) Step() float64 {
	if m.Done() {
		return 0
	}
	m.gather()
	m.forward()
	loss := m.backward()
	m.step++
	m.update()
	return loss
}

func (m *Model) shuffle() {
	m.next = 0
	rand.New(m.rng).Shuffle(samples, func(i, j int) { m.order[i], m.order[j] = m.order[j], m.order[i] })
}

func (m *Model) gather() {
	if m.next+batch > samples {
		m.shuffle()
	}
	for i, s := range m.order[m.next : m.next+batch] {
		copy(m.x[i*inputs:], m.points[int(s)*inputs:int(s+1)*inputs])
		m.batchClasses[i] = m.labels[s]
	}
	m.next += batch
}

// The products go through gonum. Its sums run over the inner dimension in one order, also where it spreads the
// blocks of a large result over processors, so that the result does not depend on who was faster.
var gemm = gonum.Implementation{}.Dgemm

// forward fills h and, with probabilities, out.
func (m *Model) forward() {
	w1, b1, w2, b2 := m.layers(m.weights)
	n := m.hidden
	for i := range batch {
		copy(m.h[i*n:], b1)
		copy(m.out[i*classes:], b2)
	}
	gemm(blas.NoTrans, blas.NoTrans, batch, n, inputs, 1, m.x, inputs, w1, n, 1, m.h, n)
	for i, v := range m.h {
		m.h[i] = max(v, 0)
	}
	gemm(blas.NoTrans, blas.NoTrans, batch, classes, n, 1, m.h, n, w2, classes, 1, m.out, classes)
	for i := range batch {
		softmax(m.out[i*classes : (i+1)*classes])
	}
}

func softmax(v []float64) {
	top := v[0]
	for _, x := range v {
		top = max(top, x)
	}
	sum := 0.0
	for i, x := range v {
		v[i] = math.Exp(x - top)
		sum += v[i]
	}
	for i := range v {
		v[i] /= sum
	}
}

// backward fills grad and returns the mean loss; out becomes its derivative.
func (m *Model) backward() float64 {
	_, _, w2, _ := m.layers(m.weights)
	g1, gb1, g2, gb2 := m.layers(m.grad)
	n := m.hidden
	loss := 0.0
	for i, c := range m.batchClasses {
		p := &m.out[i*classes+c]
		loss -= math.Log(max(*p, math.SmallestNonzeroFloat64))
		*p--
	}
	for i := range m.out {
		m.out[i] /= batch
	}
	gemm(blas.Trans, blas.NoTrans, n, classes, batch, 1, m.h, n, m.out, classes, 0, g2, classes)
	gemm(blas.NoTrans, blas.Trans, batch, n, classes, 1, m.out, classes, w2, classes, 0, m.dh, n)
	for i, v := range m.h {
		if v == 0 {
			m.dh[i] = 0
		}
	}
	gemm(blas.Trans, blas.NoTrans, inputs, n, batch, 1, m.x, inputs, m.dh, n, 0, g1, n)
	columns(gb1, m.dh)
	columns(gb2, m.out)
	return loss / batch
}

// columns sums the columns of a matrix with batch rows.
func columns(sum, v []float64) {
	clear(sum)
	for i, x := range v {
		sum[i%len(sum)] += x
	}
}

func (m *Model) update() {
	t := float64(m.step)
	c1, c2 := 1-math.Pow(beta1, t), 1-math.Pow(beta2, t)
	for i, g := range m.grad {
		m.mean[i] = beta1*m.mean[i] + (1-beta1)*g
		m.power[i] = beta2*m.power[i] + (1-beta2)*g*g
		m.weights[i] -= rate * (m.mean[i] / c1) / (math.Sqrt(m.power[i]/c2) + tiny)
	}
}

// The files of a stored model. The last one has the sums of the others and is what makes the directory complete.
const (
	weightsFile   = "weights.bin"
	optimiserFile = "optimiser.bin"
	orderFile     = "order.bin"
	stateFile     = "state.bin"
)

var magic = []byte("lowtide model 1\n")

var le = binary.LittleEndian

// parts returns the content of each file but stateFile.
func (m *Model) parts() map[string][]byte {
	rng, err := m.rng.MarshalBinary()
	if err != nil {
		panic(err) // it has no way to fail
	}
	order := le.AppendUint32(nil, uint32(m.next))
	for _, s := range m.order {
		order = le.AppendUint32(order, s)
	}
	return map[string][]byte{
		weightsFile:   floats(m.weights),
		optimiserFile: append(floats(m.mean), floats(m.power)...),
		orderFile:     append(order, rng...),
	}
}

var partNames = []string{weightsFile, optimiserFile, orderFile}

// header is the content of stateFile for these parts.
func (m *Model) header(parts map[string][]byte) []byte {
	h := bytes.Clone(magic)
	for _, v := range []uint64{m.seed, uint64(m.steps), uint64(m.step), uint64(m.hidden)} {
		h = le.AppendUint64(h, v)
	}
	for _, name := range partNames {
		sum := sha256.Sum256(parts[name])
		h = append(h, sum[:]...)
	}
	sum := sha256.Sum256(h)
	return append(h, sum[:]...)
}

var headerSize = len(magic) + 4*8 + (len(partNames)+1)*sha256.Size

// errDamaged tells a state that is not one, or not whole.
var errDamaged = errors.New("trainer: damaged state")

// assemble makes a model of a header and its parts.
func assemble(header []byte, parts map[string][]byte) (*Model, error) {
	body := len(header) - sha256.Size
	if len(header) != headerSize || !bytes.HasPrefix(header, magic) || sha256.Sum256(header[:body]) != [32]byte(header[body:]) {
		return nil, fmt.Errorf("%w: %s", errDamaged, stateFile)
	}
	at := header[len(magic):]
	hidden := le.Uint64(at[24:])
	if hidden < 1 || hidden > widest {
		return nil, fmt.Errorf("%w: %d hidden units", errDamaged, hidden)
	}
	m := blank(le.Uint64(at), int64(le.Uint64(at[8:])), int(hidden))
	m.step = int64(le.Uint64(at[16:]))
	sums := at[32:]
	for i, name := range partNames {
		if sha256.Sum256(parts[name]) != [32]byte(sums[i*sha256.Size:]) {
			return nil, fmt.Errorf("%w: %s", errDamaged, name)
		}
	}
	return m, m.fill(parts)
}

func (m *Model) fill(parts map[string][]byte) error {
	w, o, d := parts[weightsFile], parts[optimiserFile], parts[orderFile]
	n := 8 * len(m.weights)
	if len(w) != n || len(o) != 2*n || len(d) < 4*(samples+1) {
		return fmt.Errorf("%w: sizes do not fit", errDamaged)
	}
	unfloats(m.weights, w)
	unfloats(m.mean, o[:n])
	unfloats(m.power, o[n:])
	m.next = int(le.Uint32(d))
	for i := range m.order {
		m.order[i] = le.Uint32(d[4*(i+1):])
		if m.order[i] >= samples {
			return fmt.Errorf("%w: %s", errDamaged, orderFile)
		}
	}
	if m.next > samples {
		return fmt.Errorf("%w: %s", errDamaged, orderFile)
	}
	if err := m.rng.UnmarshalBinary(d[4*(samples+1):]); err != nil {
		return fmt.Errorf("%w: %w", errDamaged, err)
	}
	return nil
}

// Marshal returns the whole state: weights, optimiser, data order, step.
func (m *Model) Marshal() []byte {
	parts := m.parts()
	out := m.header(parts)
	for _, name := range partNames {
		out = le.AppendUint64(out, uint64(len(parts[name])))
		out = append(out, parts[name]...)
	}
	return out
}

// Unmarshal returns the model that Marshal stored, or an error if a single bit is missing or changed.
func Unmarshal(data []byte) (*Model, error) {
	if len(data) < headerSize {
		return nil, fmt.Errorf("%w: %d bytes", errDamaged, len(data))
	}
	header, rest := data[:headerSize], data[headerSize:]
	parts := map[string][]byte{}
	for _, name := range partNames {
		if len(rest) < 8 || uint64(len(rest)-8) < le.Uint64(rest) {
			return nil, fmt.Errorf("%w: %s is cut off", errDamaged, name)
		}
		n := le.Uint64(rest)
		parts[name], rest = rest[8:8+n], rest[8+n:]
	}
	if len(rest) > 0 {
		return nil, fmt.Errorf("%w: %d bytes too many", errDamaged, len(rest))
	}
	return assemble(header, parts)
}

// Save writes the state into dir, which must not exist: beside it first, then renamed, so that dir is there whole
// and durable or not at all.
func (m *Model) Save(dir string) error {
	parts := m.parts()
	temp := filepath.Join(filepath.Dir(dir), "."+filepath.Base(dir)+".partial")
	if err := os.RemoveAll(temp); err != nil {
		return fmt.Errorf("save step %d: %w", m.step, err)
	}
	err := m.write(temp, parts)
	if err == nil {
		err = os.Rename(temp, dir)
	}
	if err != nil {
		os.RemoveAll(temp) // a full disk needs the room
		return fmt.Errorf("save step %d: %w", m.step, err)
	}
	return syncDir(filepath.Dir(dir))
}

func (m *Model) write(dir string, parts map[string][]byte) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	for _, name := range partNames {
		if err := writeSynced(filepath.Join(dir, name), parts[name]); err != nil {
			return err
		}
	}
	if err := writeSynced(filepath.Join(dir, stateFile), m.header(parts)); err != nil {
		return err
	}
	return syncDir(dir)
}

// Load reads what Save wrote and checks it whole.
func Load(dir string) (*Model, error) {
	header, err := os.ReadFile(filepath.Join(dir, stateFile))
	if err != nil {
		return nil, err
	}
	parts := map[string][]byte{}
	for _, name := range partNames {
		if parts[name], err = os.ReadFile(filepath.Join(dir, name)); err != nil {
			return nil, err
		}
	}
	m, err := assemble(header, parts)
	if err != nil {
		return nil, fmt.Errorf("load %s: %w", dir, err)
	}
	return m, nil
}

func floats(v []float64) []byte {
	out := make([]byte, 0, 8*len(v))
	for _, x := range v {
		out = le.AppendUint64(out, math.Float64bits(x))
	}
	return out
}

func unfloats(v []float64, data []byte) {
	for i := range v {
		v[i] = math.Float64frombits(le.Uint64(data[8*i:]))
	}
}
